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

// A mark says, in a file beside the database, how far the database has come: SQLite drops a
// write-ahead log from its first damaged frame on, and nothing in the database tells. It is
// written after each commit and not synced: after a loss of power it may be behind the
// database, and is never ahead of what a commit has synced.
// See docs/decisions/0035.
type mark struct{ file *os.File }

// reached is how far a database has come; all of it only rises.
type reached struct {
	commits   int64 // transactions that changed jobs or told events
	nextSeq   int64
	nextEvent int64
}

const (
	markNumbers = 3 * 8
	markSlot    = 64 // bytes; there are two, written in turn, so that one is whole
)

// openMark opens the mark of a folder, and makes it where there is none.
func openMark(dir string) (m mark, err error) {
	m.file, err = os.OpenFile(filepath.Join(dir, markName), os.O_CREATE|os.O_WRONLY, 0o600)
	return m, err
}

// close closes it, if it was opened.
func (m mark) close() error {
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}

// note writes how far the database has come. That it cannot be written is no fault: an older
// mark holds.
func (m mark) note(p reached) {
	b := make([]byte, 0, markNumbers+4)
	for _, n := range [...]int64{p.commits, p.nextSeq, p.nextEvent} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	m.file.WriteAt(b, p.commits%2*markSlot)
}

// readMark reads the mark of a folder; it is empty where there is none that is whole.
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

// checkMark refuses a database that has not come as far as the mark of its folder says.
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
	if err != nil && (!errors.As(err, &e) || e.code&0xff != sqlite3.SQLITE_ERROR) { // else it has none
		return err
	}
	if has >= marked.commits {
		return nil
	}
	return fmt.Errorf("the database in %s has lost its last %d acknowledged changes (its log %s-wal is damaged or missing, or an older copy replaced the database); copy the directory, then restore a backup with: queuectl restore FILE; to continue without those changes, remove %s",
		dir, marked.commits-has, fileName, filepath.Join(dir, markName))
}
