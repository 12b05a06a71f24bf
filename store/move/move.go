// Package move moves a queue that no service uses from one database to another.
//
// Start with MoveQueue.
package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// QueueLocation says where a queue is stored: in a file in the state directory Dir or, if URL is set, in a database
// on a server. See docs/decisions/0037.
type QueueLocation struct{ Dir, URL string }

// String returns the location without a password.
func (l QueueLocation) String() string {
	if l.URL == "" {
		return filepath.Join(l.Dir, sqlitedb.DatabaseFileName)
	}
	config, err := pgdb.ParseDatabaseURL(l.URL)
	if err != nil {
		return "a PostgreSQL database"
	}
	return fmt.Sprintf("the database %s at %s", config.Database, config.Host)
}

// quotedText returns the location for messages.
func (l QueueLocation) quotedText() string { return database.QuoteQueueLocation(l.String()) }

// NodeIdentity identifies the node to which a state directory belongs. StateDirID is the id of the directory.
type NodeIdentity struct{ NodeName, StateDirID string }

// MoveResult reports what MoveQueue has moved.
type MoveResult struct {
	JobCount int64 `json:"jobs"`
	RowCount int64 `json:"rows"` // rows of all tables
	// PreviouslyCopiedRows is the number of rows that an interrupted move had copied before.
	PreviouslyCopiedRows int64 `json:"found"`
	// AlreadyMoved reports that this move was completed by an earlier call.
	AlreadyMoved bool `json:"before,omitempty"`
}

// MoveQueue moves a queue that no service uses, except its output files, which stay in the state directory. node is the
// node of this directory, and gets the running jobs. When the copy is complete and equal to the original, MoveQueue
// marks the original as moved, so that no service opens it any more; only then is the copy valid. MoveQueue continues
// an interrupted move if the queue has not changed since then. It reports to reportProgress how many rows of a table
// are copied.
func MoveQueue(ctx context.Context, source, target QueueLocation, node NodeIdentity,
	reportProgress func(table string, rows int64)) (result MoveResult, err error) {
	if source == target {
		return result,
			queue.InvalidFieldError("to", "the queue is already in %s, according to the settings and environment of this "+
				"command; if the service uses other settings, give the queue's present store with --from STORE",
				source.quotedText())
	}
	m := &queueMove{ctx: ctx, sourceLocation: source, targetLocation: target, node: node, reportProgress: reportProgress}
	defer func() { err = errors.Join(err, m.closeConns()) }()
	for _, step := range []func() error{m.openSource, m.openTarget, m.copyMissingRows, m.compareTables, m.finishMove} {
		err := step()
		if errors.As(err, new(pgdb.ConnLostError)) && m.targetConn != nil {
			err = fmt.Errorf("the move is not complete, because %w; to continue it, repeat this command", err)
		}
		if err != nil || m.result.AlreadyMoved {
			return m.result, err
		}
	}
	return m.result, nil
}

const incompleteCopyFileName = "moving.db"

// sourceVersion identifies a queue and its state. An interrupted copy is continued only if these values are the
// same.
type sourceVersion struct {
	Location    string `json:"place"`
	CommitCount int64  `json:"commits"`
}

// queueMove is the state of one call of MoveQueue.
type queueMove struct {
	ctx                            context.Context
	sourceLocation, targetLocation QueueLocation
	node                           NodeIdentity
	reportProgress                 func(string, int64)
	result                         MoveResult

	sourceConn, targetConn database.Conn

	tables        []table
	sourceVersion sourceVersion
	// sourceMovedTo is the queue's new location according to a note in the source, or "" without a note. An
	// interrupted move may have left the note.
	sourceMovedTo string
}

// closeConns closes the connections to the source and the target.
func (m *queueMove) closeConns() (err error) {
	for _, c := range []database.Conn{m.sourceConn, m.targetConn} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// openSource opens the queue to be moved.
func (m *queueMove) openSource() (err error) {
	if m.tables, err = schemaTables(); err != nil {
		return err
	}
	if m.sourceLocation.URL != "" {
		c, _, err := m.connectAndLockServer(m.sourceLocation)
		if err != nil {
			return err
		}
		m.sourceConn = c
		open, err := c.QueryNumber(`SELECT count(*) FROM submissions WHERE refused IS NULL`)
		if err == nil && open > 0 {
			err = queue.Errorf(queue.CodeWrongState, "nothing was moved, because %d jobs that were enqueued with SQL in %s "+
				"are not accepted yet; start the service until it has accepted them, then repeat this command", open,
				m.sourceLocation.quotedText())
		}
		if err != nil {
			return err
		}
	} else if m.sourceConn, err = m.openSourceFile(); err != nil {
		return err
	}
	if m.sourceMovedTo, err = database.ReadNote(m.sourceConn, database.NoteKeyMovedTo); err == nil &&
		m.sourceMovedTo != "" &&
		m.sourceMovedTo != m.targetLocation.String() {
		err = queue.Errorf(queue.CodeWrongState, "the queue in %[1]s has already moved to %[2]s; to move the queue again, "+
			"give its new store with --from", m.sourceLocation.quotedText(), database.QuoteQueueLocation(m.sourceMovedTo))
	}
	if err != nil {
		return err
	}
	m.sourceVersion.Location = m.sourceLocation.String()
	m.sourceVersion.CommitCount, err = m.sourceConn.QueryNumber(`SELECT commits FROM meta`)
	return err
}

// openSourceFile opens the database in the source's state directory.
func (m *queueMove) openSourceFile() (database.Conn, error) {
	path := filepath.Join(m.sourceLocation.Dir, sqlitedb.DatabaseFileName)
	if _, err := os.Stat(path); err != nil {
		return nil, queue.Errorf(queue.CodeNotFound, "there is no queue in %s", m.sourceLocation.Dir)
	}
	c, err := sqlitedb.OpenWriter(path)
	if err != nil {
		return nil, sqlitedb.ExplainOpenError(path, err)
	}
	version, err := c.QueryNumber(`PRAGMA user_version`)
	if err == nil {
		err = sqlitedb.CheckDatabaseUsable(c, m.sourceLocation.Dir)
	}
	if err == nil && version != int64(len(database.SchemaMigrations)) {
		err = sqlitedb.OldSchemaError(m.sourceLocation.Dir, version)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connectAndLockServer connects to a database on a server and locks it against other moves. hasTables reports
// whether the tables of a queue exist.
func (m *queueMove) connectAndLockServer(location QueueLocation) (c *pgdb.Conn, hasTables bool, err error) {
	config, err := pgdb.ParseDatabaseURL(location.URL)
	if err != nil {
		return nil, false, err
	}
	if config.UsesPooler {
		return nil, false, queue.InvalidFieldError("store",
			"the URL leads to a connection pooler, but a move needs a direct "+
				"connection; use the server's own URL, without pool_mode")
	}
	// One statement may copy a whole table, so disable the time limit.
	if c, err = pgdb.ConnectForWriting(m.ctx, config.WithSessionSetting("statement_timeout", "0")); err != nil {
		return nil, false, err
	}
	err = pgdb.LockQueueForMove(m.ctx, c, config.Database)
	if err == nil {
		err = pgdb.CheckObjectOwners(c)
	}
	version := int64(0)
	if err == nil {
		version, err = pgdb.CheckTables(c)
	}
	if err == nil && version > 0 {
		err = m.checkNoOtherNodes(c)
	}
	if err != nil {
		return nil, false, errors.Join(err, c.Close())
	}
	return c, version > 0, nil
}

// openTarget opens the target, and begins a copy there or finds one that an interrupted move has begun.
func (m *queueMove) openTarget() (err error) {
	if m.targetLocation.URL != "" {
		err = m.openTargetServer()
	} else {
		err = m.openTargetFile()
	}
	if err != nil || m.result.AlreadyMoved {
		return err
	}
	raw, err := database.ReadNote(m.targetConn, database.NoteKeyMoveSource)
	var savedSource sourceVersion
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), &savedSource)
	}
	if err != nil || savedSource == m.sourceVersion {
		return err
	}
	for _, t := range m.tables { // the queue has changed since the interrupted copy, so start again
		if err := m.targetConn.Exec(`DELETE FROM ` + t.name); err != nil {
			return err
		}
	}
	if err := m.targetConn.Exec(`DELETE FROM notes`); err != nil {
		return err
	}
	text, err := json.Marshal(m.sourceVersion)
	if err != nil {
		return err
	}
	return m.targetConn.Exec(`INSERT INTO notes VALUES (?, ?)`, database.NoteKeyMoveSource, string(text))
}

// openTargetServer opens a database on a server as the target, and creates the tables if they do not exist.
func (m *queueMove) openTargetServer() error {
	c, hasTables, err := m.connectAndLockServer(m.targetLocation)
	if err != nil {
		return err
	}
	m.targetConn = c
	if !hasTables {
		return pgdb.EnsureTables(c, database.SchemaMigrations, pgdb.PostgresMigrations)
	}
	return m.checkTargetHasNoQueue(c)
}

// checkTargetHasNoQueue returns an error if the database of the target already contains a queue that has not moved
// away. If an earlier call has completed this move, checkTargetHasNoQueue sets result.AlreadyMoved.
func (m *queueMove) checkTargetHasNoQueue(c database.Conn) error {
	moving, err := database.ReadNote(c, database.NoteKeyMoveSource)
	if err != nil || moving != "" {
		return err
	}
	moved, err := database.ReadNote(c, database.NoteKeyMovedTo)
	// The source's note says that this move was completed. It is outdated if, by the target's note, the queue
	// has since moved back to the source.
	if err == nil && m.sourceMovedTo != "" && moved != m.sourceLocation.String() {
		m.result.AlreadyMoved = true
		return nil
	}
	if err != nil || moved != "" {
		return err
	}
	jobs, err := c.QueryNumber(`SELECT next_seq FROM meta`)
	if err == nil && jobs > 1 {
		err = queue.Errorf(queue.CodeExists, "%s already contains a queue; choose an empty database",
			m.targetLocation.quotedText())
	}
	return err
}

// openTargetFile creates or opens the file for the copy in the target's state directory. It returns an error
// if the directory contains a queue that has not moved away.
func (m *queueMove) openTargetFile() error {
	path := filepath.Join(m.targetLocation.Dir, sqlitedb.DatabaseFileName)
	if _, err := os.Stat(path); err == nil {
		c, err := sqlitedb.OpenWriter(path)
		if err != nil {
			return sqlitedb.ExplainOpenError(path, err)
		}
		if err = errors.Join(m.checkTargetHasNoQueue(c), c.Close()); err != nil || m.result.AlreadyMoved {
			return err
		}
	}
	path = filepath.Join(m.targetLocation.Dir, incompleteCopyFileName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|sqlitedb.RegularFileOpenFlags, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil { // closing f releases no lock of SQLite, because the file is new
		return err
	}
	c, err := sqlitedb.OpenWriter(path)
	if err != nil {
		return err
	}
	m.targetConn = c
	return sqlitedb.Migrate(c, database.SchemaMigrations)
}

// finishMove marks the source as moved, and then makes the copy valid. So there is never a time at which both databases
// are valid.
func (m *queueMove) finishMove() error {
	if err := m.sourceConn.Exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
		database.NoteKeyMovedTo, m.targetLocation.String()); err != nil {
		return err
	}
	sourceNode := int64(0)
	if m.sourceLocation.URL != "" {
		var err error
		if sourceNode, err = m.thisNodeNumber(m.sourceConn); err != nil {
			return err
		}
	}
	runners, err := database.ReadNote(m.sourceConn, database.RunnerDirsNoteKey(sourceNode))
	if err != nil {
		return err
	}
	id, toServer := "", m.targetLocation.URL != ""
	if toServer {
		if err := m.raiseSequences(); err != nil {
			return err
		}
		id, err = pgdb.DatabaseID(m.targetConn)
	} else {
		id = sqlitedb.FileID(filepath.Join(m.targetLocation.Dir, incompleteCopyFileName))
	}
	if err != nil {
		return err
	}
	err = database.InTransaction(m.targetConn, func() error {
		if err := m.targetConn.Exec(`DELETE FROM notes`); err != nil {
			return err
		}
		node, err := m.assignLeasesToNode()
		for key, value := range map[string]string{database.RunnerDirsNoteKey(node): runners, database.NoteKeyDatabaseID: id} {
			if value != "" && err == nil {
				err = m.targetConn.Exec(`INSERT INTO notes VALUES (?, ?)`, key, value)
			}
		}
		return err
	})
	if err != nil || toServer {
		return err
	}
	return m.installCopiedFile()
}

// raiseSequences sets the sequences of the server above the numbers in the copied rows.
func (m *queueMove) raiseSequences() error {
	for _, t := range m.tables {
		if len(t.primaryKey) != 1 {
			continue
		}
		column := t.primaryKey[0]
		counts, err := m.targetConn.QueryNumber(`SELECT count(*) FROM pg_attribute WHERE attrelid = '` + t.name +
			`'::regclass AND attname = '` + column + `' AND attidentity <> ''`)
		if err == nil && counts > 0 {
			_, err = m.targetConn.QueryNumber(`SELECT setval(pg_get_serial_sequence('` + t.name + `', '` + column +
				`'), greatest(coalesce((SELECT max(` + column + `) FROM ` + t.name + `), 0) + 1, 1), false)`)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// installCopiedFile makes the copied file the queue of its directory.
func (m *queueMove) installCopiedFile() error {
	err := m.targetConn.Close()
	m.targetConn = nil
	if err != nil {
		return err
	}
	path := filepath.Join(m.targetLocation.Dir, sqlitedb.DatabaseFileName)
	// Remove the old files of a queue that has moved away from this directory.
	for _, name := range append(sqlitedb.DatabaseFileNames()[1:], sqlitedb.HighWaterFileName) {
		if err := os.Remove(filepath.Join(m.targetLocation.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(filepath.Join(m.targetLocation.Dir, incompleteCopyFileName), path); err != nil {
		return err
	}
	return atomicfile.SyncDir(m.targetLocation.Dir)
}

// assignLeasesToNode assigns all leases in the copy to the node of this state directory. On a server, it adds the
// node with a node lease that does not expire: otherwise another node would take over the jobs before this
// node's service has started.
func (m *queueMove) assignLeasesToNode() (nodeNumber int64, err error) {
	if m.targetLocation.URL != "" {
		if nodeNumber, err = m.targetConn.QueryNumber(
			`INSERT INTO nodes (name, folder, place, until, version, incarnation) VALUES (?, ?, '', 'infinity', '', 0)
			ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, place = '', until = excluded.until, gone = false
			RETURNING id`, m.node.NodeName, m.node.StateDirID); err != nil {
			return 0, err
		}
		if err := m.targetConn.Exec(`DELETE FROM changes`); err != nil { // entries about an earlier queue
			return 0, err
		}
	}
	reservations, err := database.ReadLeaseReservations(m.targetConn)
	if err != nil {
		return 0, err
	}
	var list []byte
	for seq, r := range reservations {
		list = database.AppendLeaseReservation(list, seq, r.Fence, nodeNumber)
	}
	err = m.targetConn.Exec(`UPDATE meta SET reserved = ?`, string(list))
	if err == nil {
		err = m.targetConn.Exec(`UPDATE jobs SET node = ? WHERE place = 3`, nodeNumber)
	}
	if err == nil {
		err = m.targetConn.Exec(`UPDATE batches SET node = ?`, nodeNumber)
	}
	return nodeNumber, err
}
