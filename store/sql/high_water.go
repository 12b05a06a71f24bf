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

// highWaterFile is a file next to the database. It stores how many changes were committed, so that a loss of
// changes is noticed: SQLite silently ignores a write-ahead log from its first damaged frame on. The file is
// written after each commit, without fsync. After a power failure, it may be behind the database, but it is
// never ahead of what a commit has synced.
// See docs/decisions/0035.
type highWaterFile struct{ file *os.File }

// highWater holds counters that show how many changes a database has stored. All values only increase.
type highWater struct {
	commits   int64 // number of transactions that changed jobs or added events
	nextSeq   int64
	nextEvent int64
}

const (
	highWaterNumbers = 3 * 8
	// highWaterSlot is the size of a slot in bytes. The file has two slots, written alternately, so that one
	// is always intact.
	highWaterSlot = 64
)

// openHighWater opens the file in a directory, and creates it if it does not exist.
func openHighWater(dir string) (m highWaterFile, err error) {
	m.file, err = os.OpenFile(filepath.Join(dir, highWaterName), os.O_CREATE|os.O_WRONLY, 0o600)
	return m, err
}

// close closes the file, if it is open.
func (m highWaterFile) close() error {
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}

// write writes the high-water mark. It ignores errors, because the older content of the file remains valid.
func (m highWaterFile) write(p highWater) {
	b := make([]byte, 0, highWaterNumbers+4)
	for _, n := range [...]int64{p.commits, p.nextSeq, p.nextEvent} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	m.file.WriteAt(b, p.commits%2*highWaterSlot)
}

// readHighWater reads the file in a directory. It returns the zero value if the file is missing or damaged.
func readHighWater(dir string) (p highWater) {
	raw, _ := os.ReadFile(filepath.Join(dir, highWaterName))
	for at := 0; at+highWaterNumbers+4 <= len(raw); at += highWaterSlot {
		b := raw[at:]
		if crc32.ChecksumIEEE(b[:highWaterNumbers]) != binary.LittleEndian.Uint32(b[highWaterNumbers:]) {
			continue
		}
		number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
		if got := (highWater{number(0), number(1), number(2)}); got.commits > p.commits {
			p = got
		}
	}
	return p
}

// checkHighWater returns an error if the database is behind the high-water mark in its directory.
func checkHighWater(c *liteConn, dir string) error {
	marked, commits := readHighWater(dir), int64(0)
	if marked.commits == 0 {
		return nil
	}
	hasMeta, err := c.number(`SELECT count(*) FROM sqlite_schema WHERE name = 'meta'`)
	if err == nil && hasMeta > 0 {
		commits, err = c.number(`SELECT commits FROM meta`)
	}
	var e *sqliteError
	// SQLITE_ERROR means that the column does not exist.
	if err != nil && (!errors.As(err, &e) || e.code&0xff != sqlite3.SQLITE_ERROR) {
		return err
	}
	if commits >= marked.commits {
		return nil
	}
	return fmt.Errorf("the database in %s has lost its last %d acknowledged changes (its log %s-wal is damaged or "+
		"missing, or an older copy replaced the database); copy the directory, then restore a backup with: queuectl "+
		"restore FILE; to continue without those changes, remove %s",
		dir, marked.commits-commits, databaseName, filepath.Join(dir, highWaterName))
}
