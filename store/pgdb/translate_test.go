package pgdb

import (
	"strings"
	"testing"
)

// translateStatement changes placeholders and removes hints that only SQLite understands.
func TestTranslateStatementForPostgres(t *testing.T) {
	for is, want := range map[string]string{
		`SELECT a FROM t INDEXED BY t_a WHERE a = ? AND b = '?'`: `SELECT a FROM t  WHERE a = $1 AND b = '?'`,
		"SELECT a FROM t INDEXED BY t_a\n\tWHERE a = ?":          "SELECT a FROM t \n\tWHERE a = $1",
		`UPDATE t SET a = ?, b = ? WHERE c = ?3`:                 `UPDATE t SET a = $1, b = $2 WHERE c = $3`,
		`SELECT 1 FROM a CROSS JOIN b ON c = ?`:                  `SELECT 1 FROM a JOIN b ON c = $1`,
	} {
		if got := translateStatement(is); strings.TrimSpace(got) != want {
			t.Errorf("%s: got %q, want %q", is, got, want)
		}
	}
}

// The error for an unreachable server fits on one line, even if the server has several addresses.
func TestUnreachableServerErrorIsOneLine(t *testing.T) {
	config, err := ParseDatabaseURL("postgres://q@127.0.0.1:1,127.0.0.1:2/d")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Connect(t.Context(), config)
	if err == nil || strings.ContainsAny(err.Error(), "\n\t") || !strings.Contains(err.Error(), "127.0.0.1:1") ||
		!strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Errorf("got %v", err)
	}
}
