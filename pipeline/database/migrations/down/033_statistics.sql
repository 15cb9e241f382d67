drop function analyze_grown();
do $$
declare called regprocedure;
begin
    foreach called in array array['build_keyword_index(integer)', 'build_vector_index(integer, bigint)']::regprocedure[] loop
        execute replace(replace(pg_get_functiondef(called), 'advisory_xact_lock_shared(', 'advisory_xact_lock('),
                        'analyze (skip_locked) %I', 'analyze %I');
    end loop;
end $$;
