drop table alert_message;
