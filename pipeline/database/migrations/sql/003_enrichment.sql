-- What an enrichment job needs beyond its row: to be asked twice and cost one, to crash, to fail with a reason.

alter table enrichment_job
    add column submission bytea,                     -- same question, same value; null once it may be asked anew
    add column crash_count integer not null default 0,
    add column corpus text,                          -- the state of the documents when the work began
    add column due_at timestamptz not null default now(),
    add column code text,
    add column error text;                           -- a sentence without any text of documents

create unique index enrichment_job_asked on enrichment_job (tenant_id, submission);
create index enrichment_job_open on enrichment_job (priority, created_at) where state in ('queued', 'running');
create index enrichment_job_finished on enrichment_job (finished_at) where finished_at is not null;

grant select (crash_count, due_at, code, error),
      update (submission, crash_count, due_at, code, error),
      delete on enrichment_job to larder_control;
