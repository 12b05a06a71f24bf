package sql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Location is the location of a queue: the file in a state directory or, if URL is set, a database on a server.
// See docs/decisions/0037.
type Location struct{ Dir, URL string }

// String returns the location without a password.
func (p Location) String() string {
	if p.URL == "" {
		return filepath.Join(p.Dir, databaseName)
	}
	config, err := readAddress(p.URL)
	if err != nil {
		return "a PostgreSQL database"
	}
	return fmt.Sprintf("the database %s at %s", config.Database, config.Host)
}

// MoveResult reports what Move has moved.
type MoveResult struct {
	Jobs int64 `json:"jobs"`
	Rows int64 `json:"rows"` // rows of all tables
	// ResumedRows is the number of rows that an interrupted move had already copied.
	ResumedRows int64 `json:"found"`
	// AlreadyDone reports that an earlier call had already completed this move.
	AlreadyDone bool `json:"before,omitempty"`
}

// Move moves a queue that no service uses. It moves everything except output files, which stay in the state
// directory. member is the node of that directory and owns the running jobs. The copy is valid only when it
// is complete and was compared with the original. Then the original is marked as moved, and no service opens
// it any more. Move continues an interrupted move, unless the queue has changed since. It reports progress to
// the callback each: the name of a table and the number of its rows that were copied.
func Move(ctx context.Context, from, to Location, member NodeConfig,
	each func(table string, rows int64)) (done MoveResult, err error) {
	if from == to {
		return done, queue.Invalid("to", "the queue is already in %s, according to the settings and environment of this "+
			"command; if the service uses other settings, give the queue's present store with --from STORE", from)
	}
	m := &move{ctx: ctx, from: from, to: to, member: member, progress: each}
	defer func() { err = errors.Join(err, m.close()) }()
	for _, step := range []func() error{m.openSource, m.openTarget, m.copy, m.compare, m.settle} {
		if err := step(); err != nil || m.result.AlreadyDone {
			return m.result, err
		}
	}
	return m.result, nil
}

// Keys of the notes about a move.
const (
	noteMoved = "moved" // names the queue's new location; no service opens a database with this note
	// noteMoving identifies the source of an incomplete copy, as JSON. No service opens a database with this
	// note.
	noteMoving = "moving"
)

// movingName is the file name of an incomplete copy.
const movingName = "moving.db"

// source identifies a queue and its state. A copy can be continued only if its source is unchanged.
type source struct {
	Place   string `json:"place"`
	Commits int64  `json:"commits"`
}

// move is the state of one call of Move.
type move struct {
	ctx      context.Context
	from, to Location
	member   NodeConfig
	progress func(string, int64)
	result   MoveResult

	sourceConn, targetConn conn
	targetFile             *liteConn // targetConn, if the target is a file; nil otherwise
	tables                 []table
	source                 source
	// movedTo is the queue's new location according to a note in the source, "" without such a note. An
	// interrupted move may have written this note.
	movedTo string
}

// close closes the connections.
func (m *move) close() (err error) {
	for _, c := range []conn{m.sourceConn, m.targetConn} {
		if c != nil {
			err = errors.Join(err, c.close())
		}
	}
	return err
}

// openSource opens the queue to be moved.
func (m *move) openSource() (err error) {
	if m.tables, err = tablesOf(); err != nil {
		return err
	}
	if m.from.URL != "" {
		m.sourceConn, err = m.server(m.from)
	} else {
		m.sourceConn, err = m.file()
	}
	if err != nil {
		return err
	}
	if m.from.URL != "" {
		open, err := m.sourceConn.number(`SELECT count(*) FROM submissions WHERE refused IS NULL`)
		if err == nil && open > 0 {
			err = queue.Errorf(queue.CodeWrongState, "%d jobs that were enqueued with SQL in %s are not accepted yet; let the "+
				"service run until it has accepted them", open, m.from)
		}
		if err != nil {
			return err
		}
	}
	if m.movedTo, err = readNote(m.sourceConn, noteMoved); err == nil && m.movedTo != "" && m.movedTo != m.to.String() {
		err = queue.Errorf(queue.CodeWrongState, "the queue in %[1]s has already moved to %[2]s; to move the queue again, "+
			"give its new store with --from", m.from, m.movedTo)
	}
	if err != nil {
		return err
	}
	m.source.Place = m.from.String()
	m.source.Commits, err = m.sourceConn.number(`SELECT commits FROM meta`)
	return err
}

// file opens the database in the source's state directory.
func (m *move) file() (conn, error) {
	path := filepath.Join(m.from.Dir, databaseName)
	if _, err := os.Stat(path); err != nil {
		return nil, queue.Errorf(queue.CodeNotFound, "there is no queue in %s", m.from.Dir)
	}
	c, err := openWriter(path)
	if err != nil {
		return nil, explain(path, err)
	}
	version, err := c.number(`PRAGMA user_version`)
	if err == nil {
		err = checkTables(c)
	}
	if err == nil {
		err = checkHighWater(c, m.from.Dir)
	}
	if err == nil && version != int64(len(migrations)) {
		err = queue.Errorf(queue.CodeWrongState, "the database in %s has schema version %d, but this queuectl needs "+
			"version %d; start the service of this version once to update the database", m.from.Dir, version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// server connects to a database and locks it, so that no other move uses it.
func (m *move) server(p Location) (conn, error) {
	config, err := readAddress(p.URL)
	if err != nil {
		return nil, err
	}
	if config.pooled {
		return nil, queue.Invalid("store", "the URL leads to a connection pooler, but a move needs a direct connection; "+
			"use the server's own URL, without pool_mode")
	}
	s := &Server{config: config.with("statement_timeout", "0")} // one statement copies a whole table
	if err := s.connect(m.ctx); err != nil {
		return nil, err
	}
	err = s.lock(m.ctx)
	there := false
	if err == nil {
		err = s.checkOwners()
	}
	if err == nil {
		there, err = s.hasTables()
	}
	if err == nil && there {
		err = m.refuseTables(s.writer)
	}
	if err == nil && there {
		err = m.refuseNodes(s.writer)
	}
	if err != nil {
		return nil, errors.Join(err, s.writer.close())
	}
	return s.writer, nil
}

// refuseTables returns an error if the server's tables are ones that this program cannot use.
func (m *move) refuseTables(c *serverConn) error {
	version, err := schemaVersion(c, serverScript(0, migrations, serverMigrations))
	if err == nil {
		_, err = checkServerSchema(c, version, migrations, serverMigrations)
	}
	return err
}

// refuseNodes returns an error if other nodes use the database or have running jobs in it.
func (m *move) refuseNodes(c conn) error {
	var alive []string
	err := c.query(func(r row) (bool, error) {
		alive = append(alive, r.text(0))
		return true, nil
	}, `SELECT name FROM nodes WHERE NOT gone AND until > clock_timestamp() AND folder <> ? ORDER BY name`, m.member.DirID)
	if err == nil && len(alive) > 0 {
		err = queue.Errorf(queue.CodeWrongState, "the services of these nodes still use the database: %s; stop them first "+
			"(queuectl service stop on each node), and try again; a killed service stays in this list until its lease expires "+
			"(setting node_lease)", strings.Join(alive, ", "))
	}
	if err != nil {
		return err
	}
	if err := gather(c); err != nil {
		return err
	}
	own, reserved, err := m.reservations(c)
	if err != nil {
		return err
	}
	others, err := c.number(`SELECT count(*) FROM jobs INDEXED BY jobs_running WHERE place = 3 AND node <> ?`, own)
	for _, node := range fieldOf(reserved, 2) {
		others += bit(node != own)
	}
	if err == nil && others > 0 {
		err = queue.Errorf(queue.CodeWrongState, "%d jobs are running, or were last running, on other nodes; start the "+
			"service and wait until these jobs have ended", others)
	}
	// Expel the other nodes. A node that is only cut off from the server can then no longer write.
	if err == nil {
		err = c.exec(`UPDATE nodes SET gone = true WHERE folder <> ?`, m.member.DirID)
	}
	return err
}

// gather moves the nodes' lists of reserved leases (claimed, but not known to have started) to meta. A file
// stores its list there too.
func gather(c conn) error {
	err := c.begin()
	for _, statement := range []string{`UPDATE meta SET reserved = reserved || (SELECT coalesce(string_agg(reserved, ''), '') FROM nodes)`, `UPDATE nodes SET reserved = '' WHERE reserved <> ''`} {
		if err == nil {
			err = c.exec(statement)
		}
	}
	if err != nil {
		c.rollback()
		return err
	}
	return c.commit()
}

// reservations returns meta.reserved of a database on a server, and the number of this directory's node, 0 if
// it has none.
func (m *move) reservations(c conn) (node int64, reserved string, err error) {
	if node, err = c.number(`SELECT id FROM nodes WHERE folder = ?`, m.member.DirID); err != nil {
		return 0, "", err
	}
	err = c.query(func(r row) (bool, error) {
		reserved = r.text(0)
		return false, nil
	}, `SELECT reserved FROM meta`)
	return node, reserved, err
}

// openTarget opens the target. It begins a copy there, or finds the one that an interrupted move has begun.
func (m *move) openTarget() (err error) {
	if m.to.URL != "" {
		err = m.openServer()
	} else {
		err = m.openFile()
	}
	if err != nil || m.result.AlreadyDone {
		return err
	}
	raw, err := readNote(m.targetConn, noteMoving)
	var was source
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), &was)
	}
	if err != nil || was == m.source {
		return err
	}
	for _, t := range m.tables { // the queue has changed since the interrupted copy
		if err := m.targetConn.exec(`DELETE FROM ` + t.name); err != nil {
			return err
		}
	}
	text, err := json.Marshal(m.source)
	if err != nil {
		return err
	}
	return m.targetConn.exec(`INSERT INTO notes VALUES (?, ?)`, noteMoving, string(text))
}

// openServer opens a database on a server as the target, and creates the tables if they do not exist.
func (m *move) openServer() error {
	c, err := m.server(m.to)
	if err != nil {
		return err
	}
	m.targetConn = c
	s := &Server{writer: c.(*serverConn)}
	there, err := s.hasTables()
	if err == nil {
		err = s.checkOwners()
	}
	if err != nil {
		return err
	}
	if !there {
		return s.makeTables(migrations, serverMigrations)
	}
	return m.refuseQueue()
}

// refuseQueue returns an error if the target already contains a queue. A queue that has moved away may be
// overwritten. If this move was completed earlier, refuseQueue sets result.Before.
func (m *move) refuseQueue() error {
	moving, err := readNote(m.targetConn, noteMoving)
	if err != nil || moving != "" {
		return err
	}
	moved, err := readNote(m.targetConn, noteMoved)
	// The source's note says that this move was completed. If the target has moved back to the source since,
	// the target's content is outdated.
	if err == nil && m.movedTo != "" && moved != m.from.String() {
		m.result.AlreadyDone = true
		return nil
	}
	if err != nil || moved != "" {
		return err
	}
	jobs, err := m.targetConn.number(`SELECT next_seq FROM meta`)
	if err == nil && jobs > 1 {
		err = queue.Errorf(queue.CodeExists, "%s already contains a queue; choose an empty database", m.to)
	}
	return err
}

// openFile opens the file for a copy in the target's state directory. The directory must not contain a queue,
// except one that has moved away.
func (m *move) openFile() error {
	path := filepath.Join(m.to.Dir, databaseName)
	if _, err := os.Stat(path); err == nil {
		c, err := openWriter(path)
		if err != nil {
			return explain(path, err)
		}
		m.targetConn = c
		err = m.refuseQueue()
		m.targetConn = nil
		if err = errors.Join(err, c.close()); err != nil || m.result.AlreadyDone {
			return err
		}
	}
	path = filepath.Join(m.to.Dir, movingName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|plainFile, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil { // the file is new, so closing it releases no lock
		return err
	}
	c, err := openWriter(path)
	if err != nil {
		return err
	}
	m.targetConn, m.targetFile = c, c
	return migrate(c, migrations)
}

// settle marks the source as moved, then makes the copy valid. The source and the copy are never both valid.
func (m *move) settle() error {
	if err := m.sourceConn.exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
		noteMoved, m.to.String()); err != nil {
		return err
	}
	of := int64(0)
	if m.from.URL != "" {
		var err error
		if of, _, err = m.reservations(m.sourceConn); err != nil {
			return err
		}
	}
	runners, err := readNote(m.sourceConn, runnersNote(of))
	if err != nil {
		return err
	}
	id := ""
	if m.targetFile == nil {
		if err := m.raiseNumbers(); err != nil {
			return err
		}
		id, err = serverID(m.targetConn)
	} else {
		id = FileID(filepath.Join(m.to.Dir, movingName))
	}
	if err != nil {
		return err
	}
	if err := m.targetConn.begin(); err != nil {
		return err
	}
	if err := m.targetConn.exec(`DELETE FROM notes`); err != nil {
		return err
	}
	node, err := m.giveLeases()
	if err != nil {
		return err
	}
	for key, value := range map[string]string{runnersNote(node): runners, noteFile: id} {
		if value == "" {
			continue
		}
		if err := m.targetConn.exec(`INSERT INTO notes VALUES (?, ?)`, key, value); err != nil {
			return err
		}
	}
	if err := m.targetConn.commit(); err != nil || m.targetFile == nil {
		return err
	}
	return m.installCopy()
}

// giveLeases assigns all leases in the copy to this directory's node. On a server, it adds this node with a
// node lease that does not expire. So no other node takes over the jobs before this node's service has
// started.
func (m *move) giveLeases() (node int64, err error) {
	if m.targetFile == nil {
		if node, err = m.targetConn.number(
			`INSERT INTO nodes (name, folder, place, until, version, incarnation) VALUES (?, ?, '', 'infinity', '', 0)
			ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, place = '', until = excluded.until, gone = false RETURNING id`, m.member.Name, m.member.DirID); err != nil {
			return 0, err
		}
		if err := m.targetConn.exec(`DELETE FROM changes`); err != nil { // cache deltas of an earlier queue are useless
			return 0, err
		}
	}
	reserved := ""
	err = m.targetConn.query(func(r row) (bool, error) {
		reserved = r.text(0)
		return false, nil
	}, `SELECT reserved FROM meta`)
	if err != nil {
		return 0, err
	}
	held, err := numbers(reserved)
	if err != nil {
		return 0, err
	}
	var list []byte
	for seq, fence := range held {
		list = appendReserved(list, seq, fence, node)
	}
	err = m.targetConn.exec(`UPDATE meta SET reserved = ?`, string(list))
	if err == nil {
		err = m.targetConn.exec(`UPDATE jobs SET node = ? WHERE place = 3`, node)
	}
	if err == nil {
		err = m.targetConn.exec(`UPDATE batches SET node = ?`, node)
	}
	return node, err
}

// raiseNumbers makes the server's sequences continue above the numbers in the copied rows.
func (m *move) raiseNumbers() error {
	for _, t := range m.tables {
		if len(t.key) != 1 {
			continue
		}
		column := t.columns[t.key[0]]
		counts, err := m.targetConn.number(`SELECT count(*) FROM pg_attribute WHERE attrelid = '` + t.name +
			`'::regclass AND attname = '` + column + `' AND attidentity <> ''`)
		if err == nil && counts > 0 {
			_, err = m.targetConn.number(`SELECT setval(pg_get_serial_sequence('` + t.name + `', '` + column +
				`'), greatest(coalesce((SELECT max(` + column + `) FROM ` + t.name + `), 0) + 1, 1), false)`)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// installCopy makes the copied file the queue of its directory.
func (m *move) installCopy() error {
	err := m.targetFile.close()
	m.targetConn, m.targetFile = nil, nil
	if err != nil {
		return err
	}
	path := filepath.Join(m.to.Dir, databaseName)
	// Remove the files of the queue that has moved away.
	for _, name := range []string{highWaterName, databaseName + "-wal", databaseName + "-shm"} {
		if err := os.Remove(filepath.Join(m.to.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(filepath.Join(m.to.Dir, movingName), path); err != nil {
		return err
	}
	return syncDir(m.to.Dir)
}

// movedNotes holds the notes about a move.
type movedNotes struct{ movedTo, moving string }

func (n *movedNotes) read(all *queryBatch) {
	all.add(func(r row) (bool, error) {
		n.movedTo = r.text(0)
		return false, nil
	}, noteQuery, noteMoved)
	all.add(func(r row) (bool, error) {
		n.moving = r.text(0)
		return false, nil
	}, noteQuery, noteMoving)
}

func (n *movedNotes) refuse() error {
	switch {
	case strings.HasSuffix(n.movedTo, databaseName):
		return queue.Errorf(
			queue.CodeInvalid, `this queue has moved to the SQLite file %s; set "store" to "sqlite", and use the directory of that file as the state directory`, n.movedTo)
	case n.movedTo != "":
		return queue.Errorf(
			queue.CodeInvalid, `this queue has moved to %s; set "store" to the URL of that database, or put the URL in the file that store_file names`, n.movedTo)
	case n.moving != "":
		return queue.Errorf(queue.CodeInvalid, "this copy of a queue is incomplete, because a move was interrupted; "+
			"complete the move with: queuectl migrate")
	}
	return nil
}
