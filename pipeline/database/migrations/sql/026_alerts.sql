-- What is wrong just now: written by whoever notices, told once by whoever looks first.
create table alert (
    name     text not null,
    subject  text not null default '',
    severity text not null,
    message  text not null,
    since    timestamptz not null default now(),
    seen_at  timestamptz not null default now(),
    fired_at timestamptz,
    primary key (name, subject)
);
grant select, insert, update, delete on alert to larder_control;
