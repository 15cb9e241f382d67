-- What a channel of alerts has yet to be told: kept with the alert, so that neither a channel that is away nor a process
-- that ends in between takes it away.
create table alert_message (
    id          bigint generated always as identity primary key,
    address     text not null,
    told        jsonb not null,
    lease_until timestamptz
);
grant select, insert, update, delete on alert_message to larder_control;
