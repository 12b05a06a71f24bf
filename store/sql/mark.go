package sql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"modernc.org/sqlite/lib"
)

// mark is a file next to the database that stores how far the database has come. SQLite ignores a write-ahead
// log from its first damaged frame on, and nothing in the database shows that changes are missing. The mark
// shows it. It is written after each commit, without fsync. After a power failure, it may be behind the
// database. It is never ahead of what a commit has synced.
// See docs/decisions/0035.
type mark struct{ file *os.File }

// reached is how far a database has come. All values only increase.
type reached struct {
	commits   int64 // number of transactions that changed jobs or added events
	nextSeq   int64
	nextEvent int64
}

const (
	markNumbers = 3 * 8
	// markSlot is the size of a slot in bytes. The file has two slots, written alternately, so that one is
	// always intact.
	markSlot = 64
)

// openMark opens the mark in a directory, and creates it if it does not exist.
func openMark(dir string) (m mark, err error) {
	m.file, err = os.OpenFile(filepath.Join(dir, markName), os.O_CREATE|os.O_WRONLY, 0o600)
	return m, err
}

// close closes the mark, if it is open.
func (m mark) close() error {
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}

// note writes how far the database has come. An error does no harm: the older mark remains valid.
func (m mark) note(p reached) {
	b := make([]byte, 0, markNumbers+4)
	for _, n := range [...]int64{p.commits, p.nextSeq, p.nextEvent} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	m.file.WriteAt(b, p.commits%2*markSlot)
}

// readMark reads the mark in a directory. It returns the zero value if the mark is missing or damaged.
func readMark(dir string) (p reached) {
	raw, _ := os.ReadFile(filepath.Join(dir, markName))
	for at := 0; at+markNumbers+4 <= len(raw); at += markSlot {
		b := raw[at:]
		if crc32.ChecksumIEEE(b[:markNumbers]) != binary.LittleEndian.Uint32(b[markNumbers:]) {
			continue
		}
		number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
		if got := (reached{number(0), number(1), number(2)}); got.commits > p.commits {
			p = got
		}
	}
	return p
}

// checkMark returns an error if the database is behind the mark in its directory.
func checkMark(c *liteConn, dir string) error {
	marked, has := readMark(dir), int64(0)
	if marked.commits == 0 {
		return nil
	}
	there, err := c.number(`SELECT count(*) FROM sqlite_schema WHERE name = 'meta'`)
	if err == nil && there > 0 {
		has, err = c.number(`SELECT commits FROM meta`)
	}
	var e *sqliteError
	// SQLITE_ERROR means that the column does not exist.
	if err != nil && (!errors.As(err, &e) || e.code&0xff != sqlite3.SQLITE_ERROR) {
		return err
	}
	if has >= marked.commits {
		return nil
	}
	return fmt.Errorf("the database in %s has lost its last %d acknowledged changes (its log %s-wal is damaged or missing, or an older copy replaced the database); copy the directory, then restore a backup with: queuectl restore FILE; to continue without those changes, remove %s",
		dir, marked.commits-has, fileName, filepath.Join(dir, markName))
}
