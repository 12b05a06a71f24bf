package pgdb

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// untrustedObjectsQuery finds objects in the schema that belong to a role that the service does not trust. The owner of
// a table can read and change jobs, and the owner of the schema or of a function can make the service's
// statements run other code. The query reads memberships from pg_auth_members. PostgreSQL's functions would
// treat a superuser as a member of all roles, and so make all roles trusted.
const untrustedObjectsQuery = `WITH RECURSIVE trusted (oid) AS (
		SELECT oid FROM pg_roles WHERE rolname = current_user
		UNION SELECT m.roleid FROM pg_auth_members AS m JOIN trusted ON m.member = trusted.oid
	), owners (oid) AS (
		SELECT oid FROM trusted
		UNION SELECT datdba FROM pg_database WHERE datname = current_database()
		UNION SELECT oid FROM pg_roles WHERE rolname = 'pg_database_owner'
	), found (place, what, owner) AS (
		SELECT 0, 'SCHEMA ' || nspname, nspowner FROM pg_namespace WHERE nspname = '` + SchemaName + `'
		UNION ALL SELECT 1, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' WHEN 'v' THEN 'VIEW '
				WHEN 'm' THEN 'MATERIALIZED VIEW ' WHEN 'f' THEN 'FOREIGN TABLE ' ELSE 'TABLE ' END
				|| '` + SchemaName + `.' || quote_ident(c.relname), c.relowner
			FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = '` + SchemaName +
	`' AND c.relkind IN ('r', 'p', 'S', 'v', 'm', 'f')
		UNION ALL SELECT 2, CASE p.prokind WHEN 'p' THEN 'PROCEDURE ' WHEN 'a' THEN 'AGGREGATE ' ELSE 'FUNCTION ' END || '` +
	SchemaName + `.' || quote_ident(p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ')', p.proowner
			FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = '` + SchemaName + `'
		UNION ALL SELECT 3, 'OPERATOR ' || '` + SchemaName + `.' || o.oprname, o.oprowner
			FROM pg_operator AS o JOIN pg_namespace AS n ON n.oid = o.oprnamespace WHERE n.nspname = '` + SchemaName + `'
	)
	SELECT what, pg_get_userbyid(owner), current_user, current_database() FROM found
		WHERE owner NOT IN (SELECT oid FROM owners) ORDER BY place, what LIMIT 1`

// untrustedObject is an object in the schema whose owner is a role that the service does not trust. kindAndName is its
// kind and name, such as "TABLE queuectl.jobs".
type untrustedObject struct{ kindAndName, ownerRole, serviceRole, databaseName string }

func (o *untrustedObject) message() string {
	return fmt.Sprintf("%s belongs to the role %s, which can therefore read and change all jobs; the "+
		"service uses the role %s", o.kindAndName, o.ownerRole, o.serviceRole)
}

func (o *untrustedObject) advice() string {
	return fmt.Sprintf(`to keep it with its data, run: ALTER %s OWNER TO %q; drop it only if queuectl did not create it`,
		o.kindAndName, o.serviceRole)
}

// findUntrustedObject returns an object of the schema that belongs to an untrusted role, or nil if none does.
// Trusted are the service's role, the roles of which it is a member, and the owner of the database.
func findUntrustedObject(c database.Querier) (object *untrustedObject, err error) {
	_, err = database.ReadFirstRow(c, func(r database.Row) {
		object = &untrustedObject{r.Text(0), r.Text(1), r.Text(2), r.Text(3)}
	}, untrustedObjectsQuery)
	return object, err
}

// CheckObjectOwners returns an error if an object of the schema belongs to an untrusted role; see findUntrustedObject.
func CheckObjectOwners(c *Conn) error {
	found, err := findUntrustedObject(c)
	if err == nil && found != nil {
		err = queue.Errorf(queue.CodeInvalid, "store: in the database %q, %s; %s", found.databaseName, found.message(),
			found.advice())
	}
	return err
}
