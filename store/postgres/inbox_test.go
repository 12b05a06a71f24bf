package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A submission is enqueued as exactly one job, even if several nodes have listed it, and however late they
// enqueue it. A node lists the submissions of its roles, and those of roles that no node has.
func TestSubmissionIsEnqueuedOnce(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	for _, err := range []error{a.SetAcceptedDatabaseRoles(t.Context(), []string{"app"}),
		b.SetAcceptedDatabaseRoles(t.Context(), []string{"shop"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pgserver.Query(t, url,
		`INSERT INTO queuectl.submissions (role, id, spec, before) VALUES ('app', 'x', '{}', 0), ('shop', 'y', '{}', 0), ('old', 'z', '{}', 0), ('old', 'zz', '{}', 1)`)
	listed := func(s *Store) (ids []string) {
		t.Helper()
		list, err := s.Submissions(t.Context(), func(role string) int { return 1 })
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			ids = append(ids, list[i].JobID)
		}
		return ids
	}
	if of, ofB := listed(a), listed(b); !slices.Equal(of, []string{"z", "x"}) && !slices.Equal(of, []string{"x", "z"}) ||
		!slices.Contains(ofB, "y") || slices.Contains(ofB, "x") {
		t.Errorf("submissions listed by node a: %v, by node b: %v", of, ofB)
	}
	take := func(s *Store) store.Receipt {
		t.Helper()
		d := newDraft()
		d.ID = "x"
		r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{d}, UID: 7, SubmissionNumber: 1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	d := newDraft()
	d.ID = "x"
	if _, err := b.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{d}, UID: 8}); !errors.Is(err,
		queue.ErrExists) {
		t.Errorf("another user enqueues a job with the id of a submission: %v", err)
	}
	if r := take(a); r.Duplicate || r.IDs[0] != "x" {
		t.Errorf("the first node enqueues it: %+v", r)
	}
	if r := take(b); !r.Duplicate {
		t.Errorf("the second node enqueues it again: %+v", r)
	}
	j, err := a.GetJob(t.Context(), "x")
	if err == nil {
		err = a.ChangeJob(t.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 7})
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := take(b); !r.Duplicate {
		t.Errorf("after the removal of its job, it is enqueued again: %+v", r)
	}
	if _, err := a.GetJob(t.Context(), "x"); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("the removed job exists again: %v", err)
	}
}

// The SQL function enqueue reads the same number of rows however many submissions wait, of the same role or
// of others. The limit still applies, and submissions that were rolled back do not count.
func TestEnqueueFunctionCostIgnoresBacklog(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openNodeWithGPU(t, url, "a")
	if err := a.SetAcceptedDatabaseRoles(t.Context(), []string{"many", "few"}); err != nil {
		t.Fatal(err)
	}
	pgserver.Query(t, url,
		`CREATE ROLE many LOGIN; CREATE ROLE few LOGIN; GRANT USAGE ON SCHEMA queuectl TO many, few; GRANT EXECUTE ON FUNCTION queuectl.enqueue(jsonb) TO many, few`)
	reads := func(role string) string {
		t.Helper()
		return pgserver.Query(t, url, `BEGIN; SET SESSION AUTHORIZATION `+role+
			`; DO $$BEGIN PERFORM queuectl.enqueue('{"command":"true"}'); END$$;
			SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'queuectl.submissions'::regclass; COMMIT`)
	}
	// insertSubmissions inserts waiting submissions of a role, like calls of the SQL function enqueue.
	insertSubmissions := func(from, upto int) {
		t.Helper()
		pgserver.Query(t, url, fmt.Sprintf(
			`INSERT INTO queuectl.submissions (role, id, spec, before) SELECT 'many', 'm' || i, '{"command":"true"}', i - 1 FROM generate_series(%d, %d) AS i;
			SELECT setval('queuectl.submitted_' || md5('many'), %[2]d)`, from, upto))
	}
	insertSubmissions(1, 10)
	reads("few")
	before := [2]string{reads("many"), reads("few")}
	insertSubmissions(12, 90_000)
	if got := [2]string{reads("many"), reads("few")}; got != before {
		t.Errorf("with 90,000 waiting submissions it reads %v rows, and with 10 it reads %v", got, before)
	}
	// Raise the sequence above the number of waiting units, as if many calls had been rolled back.
	pgserver.Query(t, url, `SELECT setval('queuectl.submitted_' || md5('few'), 1000000)`)
	reads("few")
	insertSubmissions(90_002, pgdb.MaxWaitingUnitsPerRole-1)
	reads("many")
	out, err := pgserver.TryQuery(pgserver.URLWithRole(url, "many"), `SELECT queuectl.enqueue('{"command":"true"}')`)
	if err == nil || !strings.Contains(
		out, "100000 jobs of the role many have not been read by the queuectl service yet") {
		t.Errorf("a job beyond the limit: %s, %v", out, err)
	}
	pgserver.Query(t, url, `DELETE FROM queuectl.submissions WHERE id = 'm1'`)
	reads("many")
}

// SetAcceptedDatabaseRoles accepts a role that an earlier node has set, even if its own database role may not create
// objects. For any other role, the error says what to do.
func TestAcceptedRolesNeedNoCreatePrivilege(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	owner := openNodeWithGPU(t, url, "a")
	if err := owner.SetAcceptedDatabaseRoles(t.Context(), []string{"app"}); err != nil {
		t.Fatal(err)
	}
	pgserver.Query(t, url, `CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA queuectl TO plain;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queuectl TO plain;
		GRANT USAGE ON ALL SEQUENCES IN SCHEMA queuectl TO plain`)
	node := openNodeWithGPU(t, pgserver.URLWithRole(url, "plain"), "b")
	if err := node.SetAcceptedDatabaseRoles(t.Context(), []string{"app"}); err != nil {
		t.Errorf("a role that another node has listed: %v", err)
	}
	err := node.SetAcceptedDatabaseRoles(t.Context(), []string{"app", "new"})
	if err == nil || !strings.Contains(err.Error(), `store_roles: the role "new" needs a sequence`) {
		t.Errorf("a new role: got %v, want an error that names the setting and the next step", err)
	}
}
