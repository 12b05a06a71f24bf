package sqlitedb

// Disk space that the queue needs.
const (
	ReserveName  = "reserve" // name of the file that is freed when the disk is full
	ReserveBytes = 8 << 20   // size of that file
	// MinFreeBytes is the free space in bytes below which new jobs are refused.
	MinFreeBytes = 4 << 20
)

// PageCounts holds the number of pages of the database, and how many of them are free.
type PageCounts struct{ All, Free int64 }

// CountPages counts the pages of a database.
func CountPages(c *Conn) (p PageCounts, err error) {
	if p.All, err = c.Number(`PRAGMA page_count`); err == nil {
		p.Free, err = c.Number(`PRAGMA freelist_count`)
	}
	return p, err
}

// PageSize is the page size of the database in bytes, SQLite's default.
const PageSize = 4096
