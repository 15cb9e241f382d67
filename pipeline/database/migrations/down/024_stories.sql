-- Refused while stories of another model than Gemini's are there: their vectors have no place in the table as it was.
alter table clarifai_user_story_embeddings
    add constraint only_stories_of_gemini check (model = 'gemini/gemini-embedding-001');
drop index if exists idx_story_embedding_cosine;
drop function build_story_index(integer, integer);
drop index clarifai_user_story_text;
alter table clarifai_user_story_embeddings drop column model, alter column embedding type vector(768);
alter table enrichment_job drop constraint enrichment_job_task_check;
-- Refused, too, while jobs of stories wait: what was accepted would be lost, and an older release could not touch them.
-- Those that have ended stay.
alter table enrichment_job add constraint no_story_waits
    check (task not like 'larder.stories.%' or state in ('done', 'failed', 'expired'));
alter table enrichment_job drop constraint no_story_waits;
alter table enrichment_job add check (task in ('larder.enrich', 'larder.embedding.create', 'larder.vector.store',
    'larder.vector.query')) not valid;
