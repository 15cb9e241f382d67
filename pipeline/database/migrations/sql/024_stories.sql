-- The user stories that generators wrote, as vectors of any model; those of two models are never compared.

alter table clarifai_user_story_embeddings
    alter column embedding type vector,
    add column model text not null default 'gemini/gemini-embedding-001';  -- the only one whose vectors fitted before
alter table clarifai_user_story_embeddings alter column model drop default;
-- The same text is there once, whoever writes it at the same time.
create unique index clarifai_user_story_text on clarifai_user_story_embeddings (tenant_id, md5(user_story_text));

-- Every vector is compared until about `p_from` stories are there; then those of one length, which are those of the
-- configured model, get the index. Another length has it made anew. True: it was made just now.
create function build_story_index(p_dimensions integer, p_from integer) returns boolean
    language plpgsql security definer set search_path = public, pg_temp as $$
declare
    stories constant regclass := 'clarifai_user_story_embeddings';
    there   text := pg_get_indexdef(to_regclass('idx_story_embedding_cosine'));
begin
    if there like format('%%vector(%s)%%', p_dimensions) or p_dimensions > 2000  -- more than such an index takes
       or pg_stat_get_live_tuples(stories) < p_from
       or not pg_try_advisory_xact_lock(hashtext('larder.story_index')) then
        return false;
    end if;
    drop index if exists idx_story_embedding_cosine;
    execute format('create index idx_story_embedding_cosine on clarifai_user_story_embeddings
                    using hnsw ((embedding::vector(%1$s)) vector_cosine_ops) where vector_dims(embedding) = %1$s',
                   p_dimensions);
    return true;
end $$;
grant execute on function build_story_index(integer, integer) to larder_control;

-- Stories are stored and looked for by workers, too.
alter table enrichment_job drop constraint enrichment_job_task_check;
alter table enrichment_job add check (task in ('larder.enrich', 'larder.embedding.create', 'larder.vector.store',
    'larder.vector.query', 'larder.stories.store', 'larder.stories.search'));
