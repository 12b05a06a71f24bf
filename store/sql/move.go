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

// Place is where a queue is: in the file of a state folder or, if there is a URL, in a database on a server.
// See docs/decisions/0037.
type Place struct{ Dir, URL string }

// String names it without a password.
func (p Place) String() string {
	if p.URL == "" {
		return filepath.Join(p.Dir, fileName)
	}
	config, err := readAddress(p.URL)
	if err != nil {
		return "a PostgreSQL database"
	}
	return fmt.Sprintf("the database %s at %s", config.Database, config.Host)
}

// Moved is what was moved.
type Moved struct {
	Jobs int64 `json:"jobs"`
	Rows int64 `json:"rows"` // of all tables
	// Found were there already, of a move that was cut off.
	Found int64 `json:"found"`
	// Before says that this move had been carried out before, and nothing was left to do.
	Before bool `json:"before,omitempty"`
}

// Move moves a queue that no service uses, with all that belongs to it but for outputs in files, which stay in the state
// folder. member is the node of that folder, which has what runs. Nothing holds in the new place until all of it is there and was read again; then the old one is marked as
// moved, and no service opens it any more. A move that was cut off is gone on with, unless the queue has changed meanwhile.
// each hears of the rows that were copied of a table.
func Move(ctx context.Context, from, to Place, member Member, each func(table string, rows int64)) (done Moved, err error) {
	if from == to {
		return done, queue.Invalid("to", "the queue is already in %s, according to the settings and environment of this command; if the service uses other settings, give the queue's present store with --from STORE", from)
	}
	m := &move{ctx: ctx, from: from, to: to, member: member, each: each}
	defer func() { err = errors.Join(err, m.close()) }()
	for _, step := range []func() error{m.openSource, m.openTarget, m.copy, m.compare, m.settle} {
		if err := step(); err != nil || m.done.Before {
			return m.done, err
		}
	}
	return m.done, nil
}

// What notes say of a move.
const (
	noteMoved  = "moved"  // where the queue is now: no service opens what stands here
	noteMoving = "moving" // whose copy this is, as JSON: no service opens it before it is whole
)

// movingName is a database that is not whole yet.
const movingName = "moving.db"

// source tells one state of a queue from another.
type source struct {
	Place   string `json:"place"`
	Commits int64  `json:"commits"`
}

// move is one move.
type move struct {
	ctx      context.Context
	from, to Place
	member   Member
	each     func(string, int64)
	done     Moved

	old, made conn
	lite      *liteConn // made, if it is a file
	tables    []table
	source    source
	moved     string // where the queue is by a note in the old place: a move that was cut off may have got so far
}

// close gives back what is open.
func (m *move) close() (err error) {
	for _, c := range []conn{m.old, m.made} {
		if c != nil {
			err = errors.Join(err, c.close())
		}
	}
	return err
}

// openSource opens the queue that is moved.
func (m *move) openSource() (err error) {
	if m.tables, err = tablesOf(); err != nil {
		return err
	}
	if m.from.URL != "" {
		m.old, err = m.server(m.from)
	} else {
		m.old, err = m.file()
	}
	if err != nil {
		return err
	}
	if m.from.URL != "" {
		open, err := m.old.number(`SELECT count(*) FROM submissions WHERE refused IS NULL`)
		if err == nil && open > 0 {
			err = queue.Errorf(queue.CodeWrongState, "%d jobs that were enqueued with SQL in %s are not accepted yet; let the service run until it has accepted them", open, m.from)
		}
		if err != nil {
			return err
		}
	}
	if m.moved, err = noted(m.old, noteMoved); err == nil && m.moved != "" && m.moved != m.to.String() {
		err = queue.Errorf(queue.CodeWrongState, "the queue in %[1]s has already moved to %[2]s; to move the queue again, give its new store with --from", m.from, m.moved)
	}
	if err != nil {
		return err
	}
	m.source.Place = m.from.String()
	m.source.Commits, err = m.old.number(`SELECT commits FROM meta`)
	return err
}

// file opens the database of a state folder.
func (m *move) file() (conn, error) {
	path := filepath.Join(m.from.Dir, fileName)
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
		err = checkMark(c, m.from.Dir)
	}
	if err == nil && version != int64(len(migrations)) {
		err = queue.Errorf(queue.CodeWrongState, "the database in %s has schema version %d, but this queuectl needs version %d; start the service of this version once to update the database", m.from.Dir, version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// server connects to a database, which nobody else uses then.
func (m *move) server(p Place) (conn, error) {
	config, err := readAddress(p.URL)
	if err != nil {
		return nil, err
	}
	if config.pooled {
		return nil, queue.Invalid("store", "the URL leads to a connection pooler, but a move needs a direct connection; use the server's own URL, without pool_mode")
	}
	s := &Server{config: config.with("statement_timeout", "0")} // a table is one statement
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

// refuseNodes refuses a database that other services use, or of which they have jobs.
func (m *move) refuseNodes(c conn) error {
	var alive []string
	err := c.query(func(r row) (bool, error) {
		alive = append(alive, r.text(0))
		return true, nil
	}, `SELECT name FROM nodes WHERE NOT gone AND until > clock_timestamp() AND folder <> ? ORDER BY name`, m.member.Folder)
	if err == nil && len(alive) > 0 {
		err = queue.Errorf(queue.CodeWrongState, "the services of these nodes still use the database: %s; stop them first (queuectl service stop on each node), and try again; a killed service still counts until its lease ends (setting node_lease)", strings.Join(alive, ", "))
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
		err = queue.Errorf(queue.CodeWrongState, "%d jobs are running, or were last running, on other nodes; start the service and wait until these jobs have ended", others)
	}
	if err == nil { // one that is only cut off writes nothing any more
		err = c.exec(`UPDATE nodes SET gone = true WHERE folder <> ?`, m.member.Folder)
	}
	return err
}

// gather has all leases that are not known to have started stand in meta, where that of one file has them.
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

// reservations is the number of the node of this folder in a database on a server, 0 if there is none, and meta.reserved.
func (m *move) reservations(c conn) (node int64, reserved string, err error) {
	if node, err = c.number(`SELECT id FROM nodes WHERE folder = ?`, m.member.Folder); err != nil {
		return 0, "", err
	}
	err = c.query(func(r row) (bool, error) {
		reserved = r.text(0)
		return false, nil
	}, `SELECT reserved FROM meta`)
	return node, reserved, err
}

// openTarget opens the new place, and begins a copy there or finds the one that was cut off.
func (m *move) openTarget() (err error) {
	if m.to.URL != "" {
		err = m.openServer()
	} else {
		err = m.openFile()
	}
	if err != nil || m.done.Before {
		return err
	}
	raw, err := noted(m.made, noteMoving)
	var was source
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), &was)
	}
	if err != nil || was == m.source {
		return err
	}
	for _, t := range m.tables { // of another state
		if err := m.made.exec(`DELETE FROM ` + t.name); err != nil {
			return err
		}
	}
	text, err := json.Marshal(m.source)
	if err != nil {
		return err
	}
	return m.made.exec(`INSERT INTO notes VALUES (?, ?)`, noteMoving, string(text))
}

// openServer makes the tables on a server, if there are none. Those of a queue are left alone.
func (m *move) openServer() error {
	c, err := m.server(m.to)
	if err != nil {
		return err
	}
	m.made = c
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

// refuseQueue refuses a target that has a queue of its own: one that has moved away gives way.
func (m *move) refuseQueue() error {
	moving, err := noted(m.made, noteMoving)
	if err != nil || moving != "" {
		return err
	}
	moved, err := noted(m.made, noteMoved)
	if err == nil && m.moved != "" && moved != m.from.String() { // else what stands here is from before
		m.done.Before = true
		return nil
	}
	if err != nil || moved != "" {
		return err
	}
	jobs, err := m.made.number(`SELECT next_seq FROM meta`)
	if err == nil && jobs > 1 {
		err = queue.Errorf(queue.CodeExists, "%s already contains a queue; choose an empty database", m.to)
	}
	return err
}

// openFile opens the file of a copy in a state folder, where there must be no queue but one that has moved away.
func (m *move) openFile() error {
	path := filepath.Join(m.to.Dir, fileName)
	if _, err := os.Stat(path); err == nil {
		c, err := openWriter(path)
		if err != nil {
			return explain(path, err)
		}
		m.made = c
		err = m.refuseQueue()
		m.made = nil
		if err = errors.Join(err, c.close()); err != nil || m.done.Before {
			return err
		}
	}
	path = filepath.Join(m.to.Dir, movingName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|plainFile, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil { // nobody has locked it yet
		return err
	}
	c, err := openWriter(path)
	if err != nil {
		return err
	}
	m.made, m.lite = c, c
	return migrate(c, migrations)
}

// settle has the queue be in the new place, and nowhere else at any instant.
func (m *move) settle() error {
	if err := m.old.exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, noteMoved, m.to.String()); err != nil {
		return err
	}
	of := int64(0)
	if m.from.URL != "" {
		var err error
		if of, _, err = m.reservations(m.old); err != nil {
			return err
		}
	}
	runners, err := noted(m.old, runnersNote(of))
	if err != nil {
		return err
	}
	id := ""
	if m.lite == nil {
		if err := m.raiseNumbers(); err != nil {
			return err
		}
		id, err = serverID(m.made)
	} else {
		id = FileID(filepath.Join(m.to.Dir, movingName))
	}
	if err != nil {
		return err
	}
	if err := m.made.begin(); err != nil {
		return err
	}
	if err := m.made.exec(`DELETE FROM notes`); err != nil {
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
		if err := m.made.exec(`INSERT INTO notes VALUES (?, ?)`, key, value); err != nil {
			return err
		}
	}
	if err := m.made.commit(); err != nil || m.lite == nil {
		return err
	}
	return m.putInPlace()
}

// giveLeases has what runs be of this folder's node in the new place: on a server it is there from now on, and nobody takes
// over what it has before its service has started.
func (m *move) giveLeases() (node int64, err error) {
	if m.lite == nil {
		if node, err = m.made.number(`INSERT INTO nodes (name, folder, place, until, version, incarnation) VALUES (?, ?, '', 'infinity', '', 0)
			ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, place = '', until = excluded.until, gone = false RETURNING id`, m.member.Name, m.member.Folder); err != nil {
			return 0, err
		}
		if err := m.made.exec(`DELETE FROM changes`); err != nil { // of what was there before
			return 0, err
		}
	}
	reserved := ""
	err = m.made.query(func(r row) (bool, error) {
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
	err = m.made.exec(`UPDATE meta SET reserved = ?`, string(list))
	if err == nil {
		err = m.made.exec(`UPDATE jobs SET node = ? WHERE place = 3`, node)
	}
	if err == nil {
		err = m.made.exec(`UPDATE batches SET node = ?`, node)
	}
	return node, err
}

// raiseNumbers has a server give out numbers above those that rows have.
func (m *move) raiseNumbers() error {
	for _, t := range m.tables {
		if len(t.key) != 1 {
			continue
		}
		column := t.columns[t.key[0]]
		counts, err := m.made.number(`SELECT count(*) FROM pg_attribute WHERE attrelid = '` + t.name + `'::regclass AND attname = '` + column + `' AND attidentity <> ''`)
		if err == nil && counts > 0 {
			_, err = m.made.number(`SELECT setval(pg_get_serial_sequence('` + t.name + `', '` + column + `'), greatest(coalesce((SELECT max(` + column + `) FROM ` + t.name + `), 0) + 1, 1), false)`)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putInPlace has the file of a copy be the queue of its folder.
func (m *move) putInPlace() error {
	err := m.lite.close()
	m.made, m.lite = nil, nil
	if err != nil {
		return err
	}
	path := filepath.Join(m.to.Dir, fileName)
	for _, name := range []string{markName, fileName + "-wal", fileName + "-shm"} { // of the queue that has moved away
		if err := os.Remove(filepath.Join(m.to.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(filepath.Join(m.to.Dir, movingName), path); err != nil {
		return err
	}
	return syncDir(m.to.Dir)
}

// movedNotes are what notes say of a move.
type movedNotes struct{ to, moving string }

func (n *movedNotes) read(all *reads) {
	all.add(func(r row) (bool, error) {
		n.to = r.text(0)
		return false, nil
	}, oneNote, noteMoved)
	all.add(func(r row) (bool, error) {
		n.moving = r.text(0)
		return false, nil
	}, oneNote, noteMoving)
}

func (n *movedNotes) refuse() error {
	switch {
	case n.to != "":
		return queue.Errorf(queue.CodeInvalid, `this queue has moved to %s; change the setting "store" (or store_file) to its URL, or use the directory of the SQLite file`, n.to)
	case n.moving != "":
		return queue.Errorf(queue.CodeInvalid, "this copy of a queue is incomplete, because a move was interrupted; complete the move with: queuectl migrate")
	}
	return nil
}
