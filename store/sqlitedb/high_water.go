package sqlitedb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"modernc.org/sqlite/lib"
)

// HighWaterFile is a file next to the database that stores how many changes were committed. It shows whether
// the database has lost changes, because SQLite silently ignores a write-ahead log from its first damaged part
// on. The file is written after each commit, without fsync. After a power failure, it may be older than the
// database, but never newer, because each commit is synced before the file is written. See docs/decisions/0035.
type HighWaterFile struct{ File *os.File }

// HighWaterMark holds counters that show how many changes a database has stored. All values only increase.
type HighWaterMark struct {
	CommitCount     int64 // number of transactions that changed jobs or added events
	NextJobSeq      int64
	NextEventNumber int64
}

const (
	highWaterMarkBytes = 3 * 8 // size of an encoded HighWaterMark in bytes, without its checksum
	// highWaterSlotBytes is the size of a slot in bytes. The file has two slots, which are written alternately, so
	// that a crash during a write leaves the other slot intact.
	highWaterSlotBytes = 64
)

// OpenHighWaterFile opens the file in a directory, and creates it if it does not exist.
func OpenHighWaterFile(dir string) (m HighWaterFile, err error) {
	m.File, err = os.OpenFile(filepath.Join(dir, HighWaterFileName), os.O_CREATE|os.O_WRONLY, 0o600)
	return m, err
}

// Close closes the file if it was opened.
func (f HighWaterFile) Close() error {
	if f.File == nil {
		return nil
	}
	return f.File.Close()
}

// Write writes the high-water mark. It ignores errors, because the file still contains the previous mark in the other
// slot.
func (f HighWaterFile) Write(mark HighWaterMark) {
	b, _ := binary.Append(nil, binary.LittleEndian, mark) // a struct of numbers can always be encoded
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	f.File.WriteAt(b, mark.CommitCount%2*highWaterSlotBytes)
}

// ReadHighWaterMark reads the high-water mark in a directory. It returns the zero value if the file is missing or
// damaged.
func ReadHighWaterMark(dir string) (mark HighWaterMark) {
	raw, _ := os.ReadFile(filepath.Join(dir, HighWaterFileName))
	for at := 0; at+highWaterMarkBytes+4 <= len(raw); at += highWaterSlotBytes {
		var slotContent HighWaterMark
		b := raw[at:]
		binary.Decode(b, binary.LittleEndian, &slotContent)
		if crc32.ChecksumIEEE(b[:highWaterMarkBytes]) == binary.LittleEndian.Uint32(b[highWaterMarkBytes:]) &&
			slotContent.CommitCount > mark.CommitCount {
			mark = slotContent
		}
	}
	return mark
}

// CheckNoCommitsLost returns an error if the database has fewer commits than the high-water mark in its directory.
func CheckNoCommitsLost(c *Conn, dir string) error {
	marked, commits := ReadHighWaterMark(dir), int64(0)
	if marked.CommitCount == 0 {
		return nil
	}
	hasMeta, err := c.QueryNumber(`SELECT count(*) FROM sqlite_schema WHERE name = 'meta'`)
	if err == nil && hasMeta > 0 {
		commits, err = c.QueryNumber(`SELECT commits FROM meta`)
	}
	// SQLITE_ERROR means that the column commits does not exist. The database then counts as having no commits.
	if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Code&0xff != sqlite3.SQLITE_ERROR) {
		return err
	}
	if commits >= marked.CommitCount {
		return nil
	}
	return fmt.Errorf("the database in %s has lost its last %d acknowledged changes (its log %s-wal is damaged or "+
		"missing, or an older copy replaced the database); copy the directory, then restore a backup with: queuectl "+
		"restore FILE; to continue without those changes, remove %s",
		dir, marked.CommitCount-commits, DatabaseFileName, filepath.Join(dir, HighWaterFileName))
}
