package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A service does not use tables that differ from those that it would create, and the error names the
// difference. "queuectl doctor" reports the same. Objects that an administrator has added for reports are no
// difference.
func TestOpenRejectsDifferingTables(t *testing.T) {
	pgserver.SharedServer(t) // called here because it skips the test if there is no server
	for name, c := range map[string]struct{ change, refused string }{
		"no change":        {},
		"a dropped column": {`ALTER TABLE queuectl.jobs DROP COLUMN deferred`, "it has no column jobs.deferred"},
		"an added column": {`ALTER TABLE queuectl.jobs ADD COLUMN colour text`,
			"it has the column jobs.colour, which this version does not know"},
		"another type": {`ALTER TABLE queuectl.gates ALTER n TYPE integer`,
			`its column gates.n is "integer NOT NULL" instead of "bigint NOT NULL"`},
		"another collation": {`ALTER TABLE queuectl.queues ALTER rule TYPE text COLLATE "POSIX"`,
			`its column queues.rule is "text COLLATE POSIX`},
		"no default": {`ALTER TABLE queuectl.nodes ALTER load DROP DEFAULT`,
			`its column nodes.load is "text NOT NULL" instead of`},
		"NULL is allowed": {`ALTER TABLE queuectl.events ALTER at DROP NOT NULL`,
			`its column events.at is "bigint" instead of "bigint NOT NULL"`},
		"a missing table":         {`DROP TABLE queuectl.usual`, "it has no table usual"},
		"no table of the version": {`DROP TABLE queuectl.schema`, `it has a table "asks" but no table "schema"`},
		"no table of the counts":  {`DROP TABLE queuectl.meta`, `it has no table "meta"`},
		"a build before": {`ALTER TABLE queuectl.schema DROP COLUMN fingerprint`,
			"it has no column schema.fingerprint"},
		"a missing index": {`DROP INDEX queuectl.jobs_ready`, "it has no index jobs_ready"},
		"another index": {`DROP INDEX queuectl.starts_at; CREATE INDEX starts_at ON queuectl.starts (at)`,
			"its index starts_at is"},
		"an index that forbids": {`CREATE UNIQUE INDEX one_queue ON queuectl.jobs (queue)`, "it has the index one_queue"},
		"a missing constraint": {`ALTER TABLE queuectl.jobs DROP CONSTRAINT jobs_state_check`,
			"it has no constraint jobs_state_check of jobs"},
		"a trigger":          {`CREATE TRIGGER same BEFORE UPDATE ON queuectl.jobs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`, "it has the trigger same of jobs"},
		"row security":       {`ALTER TABLE queuectl.jobs ENABLE ROW LEVEL SECURITY`, `its table jobs is "row security"`},
		"a changed function": {`CREATE OR REPLACE FUNCTION queuectl.enqueue(spec jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''other'''`, "its function enqueue(spec jsonb) is different"},
		"no function":        {`DROP FUNCTION queuectl.enqueue(jsonb)`, "it has no function enqueue(spec jsonb)"},
		"another function": {`CREATE FUNCTION queuectl.enqueue(spec text) RETURNS text LANGUAGE sql AS 'SELECT ''other'''`,
			"it has the function enqueue(spec text)"},
		"reports": {change: `CREATE VIEW queuectl.report AS SELECT queue, count(*) FROM queuectl.jobs GROUP BY queue; CREATE TABLE queuectl.log (at timestamptz);
			CREATE INDEX reported ON queuectl.jobs (created_at); CREATE FUNCTION queuectl.report_of(q text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; GRANT SELECT ON queuectl.jobs TO PUBLIC`},
		"a unique index that is not valid, as REINDEX CONCURRENTLY leaves behind": {change: `CREATE UNIQUE INDEX jobs_pkey_ccnew ON queuectl.jobs (seq);
			UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'queuectl.jobs_pkey_ccnew'::regclass`},
		"another way to write lines": {change: `UPDATE queuectl.schema SET fingerprint = 'other'`},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgserver.SharedServer(t).CreateDatabase(t)
			start := func() error {
				s, err := Open(t.Context(), url, Options{RankOrder: defaultRankOrder,
					Node: NodeConfig{NodeName: "one", StateDirID: "one"}})
				if err == nil {
					err = s.Close()
				}
				return err
			}
			if err := start(); err != nil {
				t.Fatal(err)
			}
			fingerprint := pgserver.Query(t, url, `SELECT fingerprint FROM queuectl.schema`)
			if c.change != "" {
				pgserver.Query(t, url, c.change)
			}
			said := ""
			for _, f := range pgdb.ExamineDatabase(t.Context(), url) {
				if strings.HasPrefix(f.Message, "the database ") && f.Level == store.LevelFailure {
					said += f.Message + "; " + f.Advice + "\n"
				}
			}
			err := start()
			if c.refused == "" {
				if err != nil || said != "" {
					t.Errorf("the service starts with %v, and doctor says %q", err, said)
				}
				if is := pgserver.Query(t, url, `SELECT fingerprint FROM queuectl.schema`); is != fingerprint {
					t.Errorf("the fingerprint is %s, want %s", is, fingerprint)
				}
				return
			}
			if !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), c.refused) ||
				!strings.HasSuffix(err.Error(), "; "+pgdb.SchemaMismatchAdvice) {
				t.Errorf("the service starts with %v, want %q", err, c.refused)
			}
			if err != nil && said != err.Error()+"\n" {
				t.Errorf("doctor says %q, want %q", said, err)
			}
		})
	}
}
