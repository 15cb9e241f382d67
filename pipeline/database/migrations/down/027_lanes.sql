drop policy ledger on chunk_stage;
revoke select (document_id) on chunk_stage from larder_control;
drop index document_changed;
