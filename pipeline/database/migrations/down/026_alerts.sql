drop table alert;
