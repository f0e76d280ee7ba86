CREATE TABLE api_keys (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	shown VARCHAR(32) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	scopes VARCHAR(128) DEFAULT 'run,tool,files' NOT NULL,
	name VARCHAR(128) DEFAULT '' NOT NULL,
	replaced_by VARCHAR(64),
	created_us BIGINT NOT NULL,
	revoked_us BIGINT,
	expires_us BIGINT,
	used_us BIGINT,
	request_id VARCHAR(128),
	request_digest VARCHAR(64),
	CONSTRAINT pk_api_keys PRIMARY KEY (id),
	CONSTRAINT uq_api_keys_request_id UNIQUE (request_id),
	CONSTRAINT uq_api_keys_digest UNIQUE (digest)
)
-- next
CREATE INDEX ix_api_keys_tenant ON api_keys (tenant)
-- next
CREATE TABLE settings (
	name VARCHAR(64) NOT NULL,
	value TEXT NOT NULL,
	CONSTRAINT pk_settings PRIMARY KEY (name)
)
-- next
CREATE TABLE gateways (
	id VARCHAR(64) NOT NULL,
	engine VARCHAR(128) NOT NULL,
	channels TEXT NOT NULL,
	address VARCHAR(256) DEFAULT '' NOT NULL,
	started_us BIGINT NOT NULL,
	expires_us BIGINT NOT NULL,
	CONSTRAINT pk_gateways PRIMARY KEY (id)
)
-- next
CREATE TABLE threads (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	name VARCHAR(256) NOT NULL,
	created_us BIGINT NOT NULL,
	engine VARCHAR(128),
	used_us BIGINT,
	deletion VARCHAR(64),
	CONSTRAINT pk_threads PRIMARY KEY (id),
	CONSTRAINT uq_threads_tenant UNIQUE (tenant, name)
)
-- next
CREATE INDEX ix_threads_tenant_created ON threads (tenant, created_us, id)
-- next
CREATE TABLE usage_days (
	tenant VARCHAR(64) NOT NULL,
	day_us BIGINT NOT NULL,
	agent VARCHAR(64) NOT NULL,
	model VARCHAR(256) NOT NULL,
	requests BIGINT NOT NULL,
	input_tokens BIGINT NOT NULL,
	cached_input_tokens BIGINT NOT NULL,
	output_tokens BIGINT NOT NULL,
	reasoning_tokens BIGINT NOT NULL,
	estimated_tokens BIGINT NOT NULL,
	nano_usd BIGINT NOT NULL,
	CONSTRAINT pk_usage_days PRIMARY KEY (tenant, day_us, agent, model)
)
-- next
CREATE TABLE snapshots (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	run_id VARCHAR(64) NOT NULL,
	thread VARCHAR(256) NOT NULL,
	created_by VARCHAR(256) NOT NULL,
	comment TEXT NOT NULL,
	created_us BIGINT NOT NULL,
	size_bytes BIGINT NOT NULL,
	stored_bytes BIGINT NOT NULL,
	messages INTEGER NOT NULL,
	files INTEGER NOT NULL,
	skipped INTEGER NOT NULL,
	stripped INTEGER NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	kind VARCHAR(8) NOT NULL,
	step INTEGER NOT NULL,
	request_id VARCHAR(128),
	request_digest VARCHAR(64),
	CONSTRAINT pk_snapshots PRIMARY KEY (id),
	CONSTRAINT uq_snapshots_request_id UNIQUE (tenant, request_id)
)
-- next
CREATE INDEX ix_snapshots_tenant_created ON snapshots (tenant, created_us, id)
-- next
CREATE INDEX ix_snapshots_thread_id ON snapshots (thread_id, run_id, step)
-- next
CREATE TABLE snapshot_locks (
	id VARCHAR(64) NOT NULL,
	scope VARCHAR(128) NOT NULL,
	exclusive BOOLEAN NOT NULL,
	expires_us BIGINT NOT NULL,
	CONSTRAINT pk_snapshot_locks PRIMARY KEY (id)
)
-- next
CREATE INDEX ix_snapshot_locks_scope ON snapshot_locks (scope)
-- next
CREATE TABLE policies (
	digest VARCHAR(64) NOT NULL,
	text TEXT NOT NULL,
	created_us BIGINT NOT NULL,
	CONSTRAINT pk_policies PRIMARY KEY (digest)
)
-- next
CREATE TABLE counters (
	tenant VARCHAR(64) NOT NULL,
	name VARCHAR(160) NOT NULL,
	window_us BIGINT NOT NULL,
	used BIGINT NOT NULL,
	CONSTRAINT pk_counters PRIMARY KEY (tenant, name, window_us)
)
-- next
CREATE TABLE holds (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	gateway VARCHAR(64) NOT NULL,
	name VARCHAR(160) NOT NULL,
	since_us BIGINT NOT NULL,
	CONSTRAINT pk_holds PRIMARY KEY (id)
)
-- next
CREATE INDEX ix_holds_tenant ON holds (tenant, name)
-- next
CREATE TABLE open_connections (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	gateway VARCHAR(64) NOT NULL,
	entry TEXT NOT NULL,
	CONSTRAINT pk_open_connections PRIMARY KEY (id)
)
-- next
CREATE TABLE mcp_pins (
	tenant VARCHAR(64) NOT NULL,
	agent VARCHAR(64) NOT NULL,
	server VARCHAR(64) NOT NULL,
	pinned TEXT NOT NULL,
	seen TEXT NOT NULL,
	left_out TEXT NOT NULL,
	pinned_digest VARCHAR(64) NOT NULL,
	seen_digest VARCHAR(64) NOT NULL,
	pinned_by VARCHAR(256) NOT NULL,
	pinned_us BIGINT NOT NULL,
	seen_us BIGINT NOT NULL,
	CONSTRAINT pk_mcp_pins PRIMARY KEY (tenant, agent, server)
)
-- next
CREATE TABLE storage_use (
	tenant VARCHAR(64) NOT NULL,
	threads BIGINT NOT NULL,
	bytes BIGINT NOT NULL,
	CONSTRAINT pk_storage_use PRIMARY KEY (tenant)
)
-- next
CREATE TABLE audit_records (
	tenant VARCHAR(64) NOT NULL,
	sequence BIGINT NOT NULL,
	run_id VARCHAR(64) NOT NULL,
	call_id VARCHAR(64) NOT NULL,
	arguments_digest VARCHAR(64) NOT NULL,
	policy_version VARCHAR(64) NOT NULL,
	previous_digest VARCHAR(64) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	actor VARCHAR(256) NOT NULL,
	thread VARCHAR(256) NOT NULL,
	tool VARCHAR(128) NOT NULL,
	rule VARCHAR(128) NOT NULL,
	kind VARCHAR(32) NOT NULL,
	outcome VARCHAR(32) NOT NULL,
	verdict VARCHAR(16) NOT NULL,
	details TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	size_bytes BIGINT NOT NULL,
	duration_us BIGINT NOT NULL,
	CONSTRAINT pk_audit_records PRIMARY KEY (tenant, sequence)
)
-- next
CREATE INDEX ix_audit_records_tenant ON audit_records (tenant, at_us)
-- next
CREATE INDEX ix_audit_records_run_id ON audit_records (tenant, run_id)
-- next
CREATE TABLE audit_heads (
	tenant VARCHAR(64) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	before_digest VARCHAR(64) NOT NULL,
	sequence BIGINT NOT NULL,
	first_sequence BIGINT DEFAULT '1' NOT NULL,
	CONSTRAINT pk_audit_heads PRIMARY KEY (tenant)
)
-- next
CREATE TABLE messages (
	thread_id VARCHAR(64) NOT NULL,
	position INTEGER NOT NULL,
	run_id VARCHAR(64) NOT NULL,
	message TEXT NOT NULL,
	CONSTRAINT pk_messages PRIMARY KEY (thread_id, position),
	CONSTRAINT fk_messages_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE TABLE thread_metadata (
	thread_id VARCHAR(64) NOT NULL,
	key VARCHAR(512) NOT NULL,
	value TEXT NOT NULL,
	updated_us BIGINT NOT NULL,
	CONSTRAINT pk_thread_metadata PRIMARY KEY (thread_id, key),
	CONSTRAINT fk_thread_metadata_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE TABLE runs (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	agent VARCHAR(64) NOT NULL,
	policy_version VARCHAR(64) NOT NULL,
	task TEXT NOT NULL,
	status VARCHAR(16) NOT NULL,
	stop_hook VARCHAR(128),
	stop_rule VARCHAR(128),
	last_sequence INTEGER NOT NULL,
	started_us BIGINT NOT NULL,
	finished_us BIGINT,
	cancel_us BIGINT,
	gateway VARCHAR(64),
	policy_mode VARCHAR(8) DEFAULT 'pin' NOT NULL,
	checkpoint TEXT,
	stop_reason TEXT,
	epoch INTEGER DEFAULT '0' NOT NULL,
	started_by VARCHAR(128) DEFAULT '' NOT NULL,
	steps INTEGER DEFAULT '0' NOT NULL,
	request_id VARCHAR(128),
	request_digest VARCHAR(64),
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT uq_runs_request_id UNIQUE (tenant, request_id),
	CONSTRAINT fk_runs_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_runs_tenant ON runs (tenant)
-- next
CREATE INDEX ix_runs_tenant_started ON runs (tenant, started_us)
-- next
CREATE INDEX ix_runs_status ON runs (status)
-- next
CREATE INDEX ix_runs_thread_id ON runs (thread_id)
-- next
CREATE UNIQUE INDEX uq_runs_under_way ON runs (thread_id) WHERE status IN ('running', 'waiting')
-- next
CREATE TABLE tool_calls (
	id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	arguments_digest VARCHAR(64) NOT NULL,
	policy_version VARCHAR(64) NOT NULL,
	run_id VARCHAR(64),
	gateway VARCHAR(64),
	approval_id VARCHAR(64),
	name VARCHAR(128) NOT NULL,
	arguments TEXT NOT NULL,
	state VARCHAR(16) NOT NULL,
	verdict VARCHAR(16),
	would_be VARCHAR(16),
	rule VARCHAR(128),
	would_be_rule VARCHAR(128),
	reason TEXT,
	outcome VARCHAR(32),
	exit_code INTEGER,
	is_error BOOLEAN,
	started_us BIGINT NOT NULL,
	result_bytes BIGINT,
	finished_us BIGINT,
	read_only BOOLEAN DEFAULT false NOT NULL,
	result TEXT,
	request_id VARCHAR(128),
	request_digest VARCHAR(64),
	CONSTRAINT pk_tool_calls PRIMARY KEY (id),
	CONSTRAINT uq_tool_calls_request_id UNIQUE (tenant, request_id),
	CONSTRAINT fk_tool_calls_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_tool_calls_tenant ON tool_calls (tenant, started_us)
-- next
CREATE INDEX ix_tool_calls_run_id ON tool_calls (run_id)
-- next
CREATE INDEX ix_tool_calls_thread_id ON tool_calls (thread_id)
-- next
CREATE TABLE workspace_requests (
	tenant VARCHAR(64) NOT NULL,
	request_id VARCHAR(128) NOT NULL,
	request_digest VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	answer TEXT,
	at_us BIGINT NOT NULL,
	CONSTRAINT pk_workspace_requests PRIMARY KEY (tenant, request_id),
	CONSTRAINT fk_workspace_requests_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_workspace_requests_thread_id ON workspace_requests (thread_id)
-- next
CREATE TABLE sandbox_transitions (
	id SERIAL NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	sandbox VARCHAR(64) NOT NULL,
	engine VARCHAR(128) NOT NULL,
	state VARCHAR(16) NOT NULL,
	reason VARCHAR(512) NOT NULL,
	at_us BIGINT NOT NULL,
	CONSTRAINT pk_sandbox_transitions PRIMARY KEY (id),
	CONSTRAINT fk_sandbox_transitions_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_sandbox_transitions_tenant ON sandbox_transitions (tenant, id)
-- next
CREATE INDEX ix_sandbox_transitions_thread_id ON sandbox_transitions (thread_id, id)
-- next
CREATE INDEX ix_sandbox_transitions_at_us ON sandbox_transitions (at_us)
-- next
CREATE INDEX ix_sandbox_transitions_sandbox ON sandbox_transitions (sandbox, id)
-- next
CREATE TABLE e2b_sandboxes (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	state VARCHAR(16) NOT NULL,
	created_us BIGINT NOT NULL,
	ends_us BIGINT,
	options TEXT NOT NULL,
	key_ids TEXT NOT NULL,
	secret VARCHAR(64) NOT NULL,
	CONSTRAINT pk_e2b_sandboxes PRIMARY KEY (id),
	CONSTRAINT fk_e2b_sandboxes_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_e2b_sandboxes_ends_us ON e2b_sandboxes (ends_us)
-- next
CREATE INDEX ix_e2b_sandboxes_tenant_created ON e2b_sandboxes (tenant, created_us, id)
-- next
CREATE INDEX ix_e2b_sandboxes_thread_id ON e2b_sandboxes (thread_id)
-- next
CREATE TABLE policy_changes (
	id SERIAL NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	kind VARCHAR(16) NOT NULL,
	by VARCHAR(256) NOT NULL,
	comment TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	CONSTRAINT pk_policy_changes PRIMARY KEY (id),
	CONSTRAINT fk_policy_changes_digest FOREIGN KEY(digest) REFERENCES policies (digest)
)
-- next
CREATE INDEX ix_policy_changes_tenant ON policy_changes (tenant)
-- next
CREATE TABLE approvals (
	id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	run_id VARCHAR(64),
	tenant VARCHAR(64) NOT NULL,
	call_id VARCHAR(64) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	policy_version VARCHAR(64) NOT NULL,
	tool VARCHAR(128) NOT NULL,
	rule VARCHAR(128) NOT NULL,
	arguments TEXT NOT NULL,
	reason TEXT NOT NULL,
	asked TEXT NOT NULL,
	proposed_rule TEXT,
	message TEXT,
	edited_arguments TEXT,
	arguments_bytes INTEGER NOT NULL,
	status VARCHAR(16) NOT NULL,
	answer VARCHAR(16),
	edited_digest VARCHAR(64),
	resolved_by VARCHAR(128),
	resolved_us BIGINT,
	created_us BIGINT NOT NULL,
	expires_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT pk_approvals PRIMARY KEY (id),
	CONSTRAINT fk_approvals_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id)
)
-- next
CREATE INDEX ix_approvals_changed_us ON approvals (changed_us)
-- next
CREATE INDEX ix_approvals_run_id ON approvals (run_id)
-- next
CREATE INDEX ix_approvals_thread_id ON approvals (thread_id, digest)
-- next
CREATE INDEX ix_approvals_tenant ON approvals (tenant, status)
-- next
CREATE TABLE events (
	run_id VARCHAR(64) NOT NULL,
	sequence INTEGER NOT NULL,
	type VARCHAR(64) NOT NULL,
	at_us BIGINT NOT NULL,
	payload TEXT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (run_id, sequence),
	CONSTRAINT fk_events_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
)
-- next
CREATE TABLE run_usage (
	run_id VARCHAR(64) NOT NULL,
	agent VARCHAR(64) NOT NULL,
	model VARCHAR(256) NOT NULL,
	requests BIGINT NOT NULL,
	input_tokens BIGINT NOT NULL,
	cached_input_tokens BIGINT NOT NULL,
	output_tokens BIGINT NOT NULL,
	reasoning_tokens BIGINT NOT NULL,
	estimated_tokens BIGINT NOT NULL,
	nano_usd BIGINT NOT NULL,
	open_requests BIGINT NOT NULL,
	open_input_tokens BIGINT NOT NULL,
	open_cached_input_tokens BIGINT NOT NULL,
	open_output_tokens BIGINT NOT NULL,
	open_reasoning_tokens BIGINT NOT NULL,
	open_estimated_tokens BIGINT NOT NULL,
	open_nano_usd BIGINT NOT NULL,
	first_token_us BIGINT,
	CONSTRAINT pk_run_usage PRIMARY KEY (run_id, agent, model),
	CONSTRAINT fk_run_usage_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
)
-- next
CREATE TABLE grants (
	id VARCHAR(64) NOT NULL,
	tenant VARCHAR(64) NOT NULL,
	thread_id VARCHAR(64) NOT NULL,
	run_id VARCHAR(64),
	rule TEXT NOT NULL,
	approval_id VARCHAR(64) NOT NULL,
	created_us BIGINT NOT NULL,
	revoked_us BIGINT,
	CONSTRAINT pk_grants PRIMARY KEY (id),
	CONSTRAINT fk_grants_thread_id FOREIGN KEY(thread_id) REFERENCES threads (id),
	CONSTRAINT fk_grants_approval_id FOREIGN KEY(approval_id) REFERENCES approvals (id)
)
-- next
CREATE INDEX ix_grants_thread_id ON grants (thread_id)
-- next
CREATE FUNCTION audit_records_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TG_OP = 'UPDATE' THEN RAISE EXCEPTION 'a record of the audit is never changed'; END IF;
        IF EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant = OLD.tenant AND h.first_sequence <= OLD.sequence) THEN RAISE EXCEPTION 'a record of the audit is deleted by retention or with its tenant only'; END IF; RETURN OLD; END $$
-- next
CREATE FUNCTION audit_heads_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.sequence < OLD.sequence OR NEW.first_sequence < OLD.first_sequence THEN RAISE EXCEPTION 'the end of an audit chain never goes back'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION audit_heads_held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM audit_records r WHERE r.tenant = OLD.tenant) THEN RAISE EXCEPTION 'the head of an audit chain goes after its last record'; END IF; RETURN OLD; END $$
-- next
CREATE FUNCTION audit_truncated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the audit is never truncated'; END $$
-- next
CREATE FUNCTION refuse_beginning() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM threads t WHERE t.id = NEW.thread_id AND t.deletion IS NOT NULL) THEN
    RAISE EXCEPTION 'the thread is being deleted' USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION count_threads() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TG_OP = 'DELETE' THEN UPDATE storage_use SET threads = threads - 1 WHERE tenant = OLD.tenant; ELSE INSERT INTO storage_use (tenant, threads, bytes) VALUES (NEW.tenant, 1, 0)
    ON CONFLICT (tenant) DO UPDATE SET threads = storage_use.threads + 1; END IF; RETURN NULL; END $$
-- next
CREATE FUNCTION count_messages() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT (SELECT o.tenant FROM threads o WHERE o.id = r.thread_id) AS tenant, CAST(sum(256 + octet_length(coalesce(r.message, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION count_thread_metadata() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT (SELECT o.tenant FROM threads o WHERE o.id = r.thread_id) AS tenant, CAST(sum(256 + octet_length(coalesce(r.value, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION count_runs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT r.tenant AS tenant, CAST(sum(256 + octet_length(coalesce(r.task, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION count_events() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT (SELECT o.tenant FROM runs o WHERE o.id = r.run_id) AS tenant, CAST(sum(256 + octet_length(coalesce(r.payload, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION count_tool_calls() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT r.tenant AS tenant, CAST(sum(256 + octet_length(coalesce(r.arguments, '')) + octet_length(coalesce(r.result, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION recount_tool_calls() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE storage_use SET bytes = bytes + 256 + octet_length(coalesce(NEW.arguments, '')) + octet_length(coalesce(NEW.result, '')) - (256 + octet_length(coalesce(OLD.arguments, '')) + octet_length(coalesce(OLD.result, ''))) WHERE tenant = NEW.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION count_approvals() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT r.tenant AS tenant, CAST(sum(256 + octet_length(coalesce(r.arguments, '')) + octet_length(coalesce(r.edited_arguments, ''))) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL; END $$
-- next
CREATE FUNCTION recount_approvals() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE storage_use SET bytes = bytes + 256 + octet_length(coalesce(NEW.arguments, '')) + octet_length(coalesce(NEW.edited_arguments, '')) - (256 + octet_length(coalesce(OLD.arguments, '')) + octet_length(coalesce(OLD.edited_arguments, ''))) WHERE tenant = NEW.tenant; RETURN NULL; END $$
-- next
CREATE TRIGGER audit_records_guard BEFORE UPDATE OR DELETE ON audit_records
        FOR EACH ROW EXECUTE FUNCTION audit_records_guard()
-- next
CREATE TRIGGER audit_heads_guard BEFORE UPDATE ON audit_heads FOR EACH ROW EXECUTE FUNCTION audit_heads_guard()
-- next
CREATE TRIGGER audit_heads_held BEFORE DELETE ON audit_heads FOR EACH ROW EXECUTE FUNCTION audit_heads_held()
-- next
CREATE TRIGGER audit_heads_truncated BEFORE TRUNCATE ON audit_heads FOR EACH STATEMENT EXECUTE FUNCTION audit_truncated()
-- next
CREATE TRIGGER audit_records_truncated BEFORE TRUNCATE ON audit_records FOR EACH STATEMENT EXECUTE FUNCTION audit_truncated()
-- next
CREATE TRIGGER tool_calls_refused BEFORE INSERT ON tool_calls FOR EACH ROW WHEN (NEW.state = 'executing') EXECUTE FUNCTION refuse_beginning()
-- next
CREATE TRIGGER runs_refused BEFORE INSERT ON runs FOR EACH ROW WHEN (NEW.status = 'running') EXECUTE FUNCTION refuse_beginning()
-- next
CREATE TRIGGER threads_counted AFTER INSERT OR DELETE ON threads FOR EACH ROW EXECUTE FUNCTION count_threads()
-- next
CREATE TRIGGER messages_counted AFTER INSERT ON messages REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_messages()
-- next
CREATE TRIGGER messages_uncounted AFTER DELETE ON messages REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_messages()
-- next
CREATE TRIGGER thread_metadata_counted AFTER INSERT ON thread_metadata REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_thread_metadata()
-- next
CREATE TRIGGER thread_metadata_uncounted AFTER DELETE ON thread_metadata REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_thread_metadata()
-- next
CREATE TRIGGER runs_counted AFTER INSERT ON runs REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_runs()
-- next
CREATE TRIGGER runs_uncounted AFTER DELETE ON runs REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_runs()
-- next
CREATE TRIGGER events_counted AFTER INSERT ON events REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_events()
-- next
CREATE TRIGGER events_uncounted AFTER DELETE ON events REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_events()
-- next
CREATE TRIGGER tool_calls_counted AFTER INSERT ON tool_calls REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_tool_calls()
-- next
CREATE TRIGGER tool_calls_uncounted AFTER DELETE ON tool_calls REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_tool_calls()
-- next
CREATE TRIGGER tool_calls_recounted AFTER UPDATE OF result ON tool_calls FOR EACH ROW
            WHEN (NEW.result IS DISTINCT FROM OLD.result) EXECUTE FUNCTION recount_tool_calls()
-- next
CREATE TRIGGER approvals_counted AFTER INSERT ON approvals REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_approvals()
-- next
CREATE TRIGGER approvals_uncounted AFTER DELETE ON approvals REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_approvals()
-- next
CREATE TRIGGER approvals_recounted AFTER UPDATE OF edited_arguments ON approvals FOR EACH ROW
            WHEN (NEW.edited_arguments IS DISTINCT FROM OLD.edited_arguments) EXECUTE FUNCTION recount_approvals()