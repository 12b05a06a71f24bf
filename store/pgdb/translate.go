package pgdb

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/store/database"
)

// ConnLostError is the error of a call whose connection is lost or whose server is shutting down.
type ConnLostError struct{ error }

// Kind returns DatabaseBusy, because the call may succeed on a new connection.
func (ConnLostError) Kind() database.ErrorKind { return database.DatabaseBusy }

// Error returns the message in one line, even if several addresses were tried.
func (e ConnLostError) Error() string {
	return strings.NewReplacer(":\n\t", ": ", "\n\t", "; ").Replace(e.error.Error())
}

// Unwrap returns the cause of the lost connection.
func (e ConnLostError) Unwrap() error { return e.error }

// StatementError is an error that the server returned for a statement.
type StatementError struct {
	*pgconn.PgError
	statement string
}

// Error returns the server's message, with the statement that failed.
func (e StatementError) Error() string {
	next := ""
	if e.Code == insufficientPrivilegeCode {
		next = "; grant this privilege to the PostgreSQL role of the service"
	}
	return fmt.Sprintf("%s (SQLSTATE %s)%s; the statement was: %s", e.Message, e.Code, next,
		strings.Join(strings.Fields(e.statement), " "))
}

// insufficientPrivilegeCode is the SQLSTATE code for a statement that the role may not execute.
const insufficientPrivilegeCode = "42501"

// readOnlyTransactionCode is the SQLSTATE code for a change on a server that accepts only reads, such as a standby.
const readOnlyTransactionCode = "25006"

// ErrorWithoutStatement returns the error of a failed change without the text of its SQL statement.
func ErrorWithoutStatement(err error) error {
	refused, isServerError := errors.AsType[StatementError](err)
	switch {
	case isServerError && refused.Code == readOnlyTransactionCode:
		return fmt.Errorf("the database server accepts no changes (%w); check that the setting \"store\" leads to the "+
			"primary server", refused.PgError)
	case isServerError:
		return refused.PgError
	}
	return err
}

// Kind classifies the error by the class in its SQLSTATE code, the first two characters (appendix A of
// PostgreSQL's documentation).
func (e StatementError) Kind() database.ErrorKind {
	switch e.Code[:2] {
	case "08", "57", "55", "40", "25": // connection lost, ended by operator, locked, conflict, read-only
		return database.DatabaseBusy
	case "53", "58":
		if e.Code == "53100" {
			return database.DiskFull
		}
		return database.DatabaseBusy
	case "XX":
		return database.DatabaseFailed
	}
	return database.RequestFailed
}

// wrapError returns an error of a statement as a StatementError or a ConnLostError.
func wrapError(err error, statement string) error {
	if err == nil {
		return nil
	}
	if e, isServerError := errors.AsType[*pgconn.PgError](err); isServerError {
		return StatementError{e, statement}
	}
	return ConnLostError{fmt.Errorf("the connection to the database is lost: %w", err)}
}

// translatedPartsPattern matches the parts of a statement that translateStatement replaces, and quoted texts, which it
// keeps.
var translatedPartsPattern = regexp.MustCompile(`'[^']*'|\?[0-9]*|INDEXED BY [^ \t\n)]+|CROSS JOIN `)

// translateStatement translates a statement for PostgreSQL: it numbers the placeholders and removes INDEXED BY and
// CROSS JOIN, which only SQLite needs.
func translateStatement(sql string) string {
	n := 0
	return translatedPartsPattern.ReplaceAllStringFunc(sql, func(part string) string {
		switch part[0] {
		case '\'':
			return part
		case 'I':
			return ""
		case 'C':
			return "JOIN "
		}
		if at, err := strconv.Atoi(part[1:]); err == nil {
			n = at
		} else {
			n++
		}
		return "$" + strconv.Itoa(n)
	})
}

// CleanTextForPostgres returns a text that PostgreSQL can store: valid UTF-8 without NUL characters.
func CleanTextForPostgres(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
}
