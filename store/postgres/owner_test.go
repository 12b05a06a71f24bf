package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A service does not start if an object in the schema belongs to a role that the service does not trust, even
// if its own role is a superuser. "queuectl doctor" names the object.
func TestOpenRejectsObjectsOfUntrustedRoles(t *testing.T) {
	p := pgserver.SharedServer(t)
	admin := p.DatabaseURL("postgres")
	pgserver.Query(t, admin,
		`CREATE ROLE mallory; CREATE ROLE "Service" LOGIN; CREATE ROLE team; GRANT team TO "Service"; CREATE ROLE landlord`)
	for _, c := range []struct {
		name, before, after string // SQL that is executed before and after the first start
		refused             string
	}{
		{name: "as it is made"},
		{name: "a schema made before",
			before:  `CREATE SCHEMA queuectl AUTHORIZATION mallory; GRANT ALL ON SCHEMA queuectl TO "Service"`,
			refused: "SCHEMA queuectl belongs to the role mallory"},
		{name: "a function made before",
			before: `CREATE SCHEMA queuectl AUTHORIZATION "Service"; CREATE FUNCTION queuectl.max(text) RETURNS text LANGUAGE sql AS 'SELECT $1'; ALTER FUNCTION queuectl.max(text) OWNER TO mallory`, refused: "FUNCTION queuectl.max(text) belongs to the role mallory"},
		{name: "a schema", after: `ALTER SCHEMA queuectl OWNER TO mallory; GRANT ALL ON SCHEMA queuectl TO "Service"`,
			refused: "SCHEMA queuectl belongs to the role mallory"},
		{name: "a table",
			after:   `ALTER TABLE queuectl.settings OWNER TO mallory; GRANT ALL ON queuectl.settings TO "Service"`,
			refused: "TABLE queuectl.settings belongs to the role mallory"},
		{name: "the function", after: `ALTER FUNCTION queuectl.enqueue(jsonb) OWNER TO mallory`,
			refused: "FUNCTION queuectl.enqueue(spec jsonb) belongs to the role mallory"},
		{name: "a view of another",
			after:   `CREATE VIEW queuectl.extra AS SELECT 1; ALTER VIEW queuectl.extra OWNER TO mallory`,
			refused: "VIEW queuectl.extra belongs to the role mallory"},
		{name: "a role that the service's is a member of",
			after: `ALTER TABLE queuectl.settings OWNER TO team; ALTER SCHEMA queuectl OWNER TO team`},
		{name: "the owner of the database",
			after: `ALTER TABLE queuectl.settings OWNER TO landlord; GRANT ALL ON queuectl.settings TO "Service"; ALTER SCHEMA queuectl OWNER TO landlord; GRANT ALL ON SCHEMA queuectl TO "Service"`},
	} {
		for _, role := range []string{"Service", "queuectl"} {
			t.Run(fmt.Sprint(c.name, " as ", role), func(t *testing.T) {
				owner := p.CreateDatabase(t)
				name := pgserver.Query(t, owner, `SELECT current_database()`)
				pgserver.Query(t, owner, `ALTER DATABASE `+name+` OWNER TO landlord; GRANT CREATE, CONNECT ON DATABASE `+name+
					` TO "Service"; GRANT EXECUTE ON FUNCTION pg_control_system() TO "Service"`)
				url := strings.Replace(owner, "user=queuectl", "user="+role, 1)
				statements := func(list string) {
					if list != "" {
						pgserver.Query(t, owner, strings.ReplaceAll(list, `"Service"`, `"`+role+`"`))
					}
				}
				start := func() error {
					s, err := Open(t.Context(), url, Options{RankOrder: defaultRankOrder,
						Node: NodeConfig{NodeName: "one", StateDirID: "one"}})
					if err == nil {
						err = s.Close()
					}
					return err
				}
				statements(c.before)
				if c.before == "" {
					if err := start(); err != nil {
						t.Fatal(err)
					}
				}
				if role == "queuectl" && strings.Contains(c.name, "member of") {
					statements(`GRANT team TO queuectl`)
					defer statements(`REVOKE team FROM queuectl`)
				}
				statements(c.after)
				err := start()
				if c.refused == "" && err != nil || c.refused != "" &&
					(!errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), c.refused)) {
					t.Errorf("the service starts with %v, want %q", err, c.refused)
				}
				said := ""
				for _, f := range pgdb.ExamineDatabase(t.Context(), url) {
					if f.Level == store.LevelFailure {
						said += f.Message + "\n"
					}
				}
				if c.refused != "" && !strings.Contains(said, c.refused) || c.refused == "" &&
					strings.Contains(said, "belongs to") {
					t.Errorf("doctor says %q, want %q", said, c.refused)
				}
			})
		}
	}
}
