package pgdb

import (
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// These constants limit the submissions, the jobs that applications have submitted with the SQL function
// enqueue and that no service has taken yet.
//
// The limit of a role is in units: one for each job, plus one for each specBytesPerUnit bytes of its spec.
// Counting the units of all waiting rows takes longer the more of them there are. So each role has a sequence
// that counts all units it has ever submitted, and each row stores the value that the sequence had before.
// The current value minus that in the oldest waiting row is an upper bound of the waiting units. It is too
// high if transactions were rolled back or jobs were taken out of order. So if the bound reaches the limit,
// the rows are counted. See docs/decisions/0033.
const (
	MaxWaitingUnitsPerRole = 100_000 // maximum number of waiting units of one role
	specBytesPerUnit       = 2684    // bytes of spec per unit; limits the waiting specs of a role to 256 MiB in total
	maxSubmissionBytes     = 1 << 20 // maximum size of one submitted job in bytes
	submissionLockTimeout  = "'2s'"  // how long to wait for another transaction that submits the same id
)

// submissionTableStatements returns the statements that create the tables for submissions. Applications submit jobs in
// their own database transactions, and a service enqueues them.
func submissionTableStatements() []string {
	return []string{
		`CREATE TABLE roles (
			node BIGINT NOT NULL, -- that takes what it hands in
			role TEXT COLLATE "C" NOT NULL,
			PRIMARY KEY (role, node)
		)`,
		`CREATE TABLE submissions (
			n       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			at      TIMESTAMPTZ NOT NULL DEFAULT now(),
			role    TEXT COLLATE "C" NOT NULL,
			id      TEXT COLLATE "C" NOT NULL,
			spec    TEXT NOT NULL,
			refused TEXT, -- why it became no job
			before  BIGINT NOT NULL -- units that its role had handed in
		)`,
		`CREATE UNIQUE INDEX submissions_id ON submissions (id) WHERE refused IS NULL`,
		`CREATE INDEX submissions_role ON submissions (role, n) WHERE refused IS NULL`,
		`CREATE INDEX submissions_refused ON submissions (role, n) WHERE refused IS NOT NULL`,
	}
}

// enqueueFunctionStatements returns the statements that create the SQL function enqueue, which applications call in
// their own transactions. The function runs with the rights of its owner, and ignores the caller's search_path.
func enqueueFunctionStatements() []string {
	return []string{
		`CREATE OR REPLACE FUNCTION enqueue(spec jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = ` +
			SchemaName + `, pg_temp SET lock_timeout = ` + submissionLockTimeout + ` SET enable_seqscan = off AS $$
DECLARE
	job_id text;
	wrong  text;
	caller text COLLATE "C" := session_user;
	open   bigint;
	units  bigint;
	upto   bigint; -- units that the role has handed in, with this job's
	seq_of bigint; -- a job that was given no id has its number for one
BEGIN
	IF NOT EXISTS (SELECT 1 FROM roles WHERE role = session_user) THEN
		RAISE EXCEPTION 'the role % may not enqueue jobs', session_user ` +
			`USING ERRCODE = '42501', HINT = 'add the role to the setting store_roles of the queuectl service';
	END IF;
	IF (SELECT rolsuper FROM pg_roles WHERE rolname = session_user) THEN
		RAISE EXCEPTION 'the role % is a superuser and may not enqueue jobs', session_user ` +
			`USING ERRCODE = '42501', HINT = 'use a role that is not a superuser';
	END IF;
` + submittedSpecCheckSQL() + `	units := 1 + octet_length(spec::text) / ` + strconv.Itoa(specBytesPerUnit) + `;
	SELECT max(nextval(('` + SubmittedUnitsSequencePrefix +
			`' || md5(session_user))::regclass)) INTO upto FROM generate_series(1,
units);
	IF upto - (SELECT submissions.before FROM submissions WHERE role = caller AND refused IS NULL ` +
			`ORDER BY role, n LIMIT 1) > ` + strconv.Itoa(MaxWaitingUnitsPerRole) + ` THEN
		SELECT count(*), units + sum(1 + octet_length(waiting.spec) / ` + strconv.Itoa(specBytesPerUnit) + `)
		INTO open, units
			FROM (SELECT submissions.spec FROM submissions WHERE role = caller AND refused IS NULL LIMIT ` +
			strconv.Itoa(MaxWaitingUnitsPerRole) + `) AS waiting;
		IF units > ` + strconv.Itoa(MaxWaitingUnitsPerRole) + ` THEN
			RAISE EXCEPTION '% jobs of the role % have not been read by the queuectl service yet; no more can be enqueued', ` +
			`open, session_user USING ERRCODE = '53400', HINT = 'start the queuectl service';
		END IF;
		units := 1 + octet_length(spec::text) / ` + strconv.Itoa(specBytesPerUnit) + `;
	END IF;
	BEGIN
		INSERT INTO submissions (role, id, spec, before) VALUES (session_user, job_id, ` +
			`(spec || jsonb_build_object('id', job_id))::text, upto - units);
	EXCEPTION
		WHEN unique_violation THEN
			RAISE EXCEPTION 'id: % is already used by another job; choose another id', job_id USING ERRCODE = '23505';
		WHEN lock_not_available THEN
			RAISE EXCEPTION 'id: an open transaction has also enqueued a job with the id %', job_id ` +
			`USING ERRCODE = '55P03', HINT = 'try again after that transaction, or choose another id';
	END;
	PERFORM pg_notify('` + SubmissionsNotifyChannel + `', '');
	RETURN job_id;
END $$`,
		`REVOKE ALL ON FUNCTION enqueue(jsonb) FROM PUBLIC`,
	}
}

// submittedSpecCheckSQL returns the part of the function enqueue that checks the spec and sets the job's id.
func submittedSpecCheckSQL() string {
	return `	IF spec IS NULL OR jsonb_typeof(spec) <> 'object' THEN
		RAISE EXCEPTION 'the job is not a JSON object' USING ERRCODE = '22023', HINT = '{"command": "true"}';
	END IF;
	SELECT name INTO wrong FROM jsonb_object_keys(spec) AS given (name) WHERE name <> ALL ('{` +
		strings.Join(queue.FieldNames(), ",") + `}'::text[]) LIMIT 1;
	IF wrong IS NOT NULL THEN
		RAISE EXCEPTION 'unknown job field %', wrong ` +
		`USING ERRCODE = '22023', HINT = 'list the fields with: queuectl schema enqueue';
	END IF;
	IF spec ->> 'command' IS NULL AND spec ->> 'argv' IS NULL THEN
		RAISE EXCEPTION 'no command given; set command or argv' USING ERRCODE = '22023';
	END IF;
	IF spec ->> 'command' IS NOT NULL AND spec ->> 'argv' IS NOT NULL THEN -- only the service can compare them
		RAISE EXCEPTION 'command: cannot be combined with argv; set only one of them' USING ERRCODE = '22023';
	END IF;
	IF octet_length(spec::text) > ` + strconv.Itoa(maxSubmissionBytes) + ` THEN
		RAISE EXCEPTION 'the job has more than ` + strconv.Itoa(maxSubmissionBytes) + ` bytes' USING ERRCODE = '54000';
	END IF;
	job_id := coalesce(spec ->> 'id', gen_random_uuid()::text);
	IF job_id !~ '^[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$' THEN
		RAISE EXCEPTION 'id: invalid characters or length; use up to 128 letters, digits and . _ @ / -, ` +
		`beginning with a letter or digit' USING ERRCODE = '22023';
	END IF;
	IF job_id ~ '^[1-9][0-9]{0,17}$' THEN
		seq_of := job_id::bigint;
	END IF;
	IF EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id AND jobs.id <> CAST(seq AS TEXT))
		OR EXISTS (SELECT 1 FROM jobs WHERE seq = seq_of AND jobs.id = job_id)
		OR (SELECT last FROM frames WHERE batch > 0 AND first <= seq_of ORDER BY first DESC LIMIT 1) >= seq_of
		OR EXISTS (SELECT 1 FROM staged_ids WHERE staged_ids.id = job_id) THEN
		RAISE EXCEPTION 'id: % is already used by another job; choose another id', job_id USING ERRCODE = '23505';
	END IF;
`
}

// SubmittedUnitsSequencePrefix is the first part of the name of the sequence that counts the units a role has
// submitted. The second part is the MD5 of the role's name, because this name may be too long or have characters that a
// sequence must not have.
const SubmittedUnitsSequencePrefix = "submitted_"

// SubmissionsNotifyChannel is the PostgreSQL channel on which services are notified of new submissions.
const SubmissionsNotifyChannel = "queuectl_submissions"
