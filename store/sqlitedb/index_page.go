package sqlitedb

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/store/database"
)

// A lookup in the id index descends from the root page to one leaf. Damage can hide an entry from it without an
// SQLite error. For example, a changed bit can shorten a leaf by one entry, or make a page refer to a wrong page
// of the same index.
//
// So if an id was not found, checkIndexPath descends again and checks each page as SQLite's integrity_check does.
// The page's entries, free blocks and fragments must fill it exactly. Its keys must be in order, and lie between
// the keys that led to the page. This costs about as much as the lookup, and writers pay nothing.
//
// If the disk returns an old version of a page, without its last write, the page itself is sound. Only "queuectl
// doctor --verify" finds such a page, because it compares the index entries with the rows of the table.

// The first byte of a page shows its kind. These are the kinds of index pages.
const (
	interiorPageKind = 2
	leafPageKind     = 10
)

// maxIndexDepth limits how many levels of the index a search descends. An index with more levels would not fit
// into any file.
const maxIndexDepth = 20

// indexEntry is one entry in a page of the id index. The field child is the page with smaller ids; it is 0 on
// a leaf.
type indexEntry struct {
	id    string
	child int64
}

// indexPage is one page of the id index. The field lastChild is the child page for ids after every entry; it
// is 0 on a leaf.
type indexPage struct {
	entries   []indexEntry
	lastChild int64
}

// checkIndexPath checks the pages on the path to an id that a lookup has not found. It returns a damage error
// if one of these pages is damaged or contains the id.
func checkIndexPath(c *Conn, id string) error {
	if known, err := knownPageFormat(c); err != nil || !known {
		return err
	}
	page, err := c.QueryNumber(`SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND name = 'jobs_id'`)
	low, high := "", "" // the ids in the page are between low and high; a high of "" means no upper bound
	for range maxIndexDepth {
		if err != nil {
			return err
		}
		var p indexPage
		if p, err = readIndexPage(c, page); err != nil {
			return err
		}
		for _, e := range p.entries {
			if e.id <= low {
				return lookupDamage("the ids in page %d of the database index jobs_id are not in order", page)
			}
			low = e.id
		}
		if high != "" && low >= high {
			return lookupDamage("the ids in page %d of the database index jobs_id are not in order", page)
		}
		at, found := slices.BinarySearchFunc(p.entries, id,
			func(e indexEntry, id string) int { return strings.Compare(e.id, id) })
		if found {
			return lookupDamage("a lookup does not find an id that page %d of the database index jobs_id contains", page)
		}
		if p.lastChild == 0 {
			return nil
		}
		page, low = p.lastChild, ""
		if at > 0 {
			low = p.entries[at-1].id
		}
		if at < len(p.entries) {
			page, high = p.entries[at].child, p.entries[at].id
		}
	}
	return lookupDamage("the pages of the database index jobs_id form a cycle")
}

// knownPageFormat reports whether parseIndexPage can read the pages of the database: they must have the default
// page size and no reserved bytes at their ends. It can be false if another program has rewritten the file.
func knownPageFormat(c *Conn) (isKnown bool, err error) {
	const pageBytes, reservedOffset = 4096, 20 // byte 20 of the file is the number of reserved bytes in each page
	_, err = database.FirstRow(c, func(r database.Row) {
		page := r.View(0)
		isKnown = len(page) == pageBytes && page[reservedOffset] == 0
	}, `SELECT data FROM sqlite_dbpage WHERE pgno = 1`)
	return isKnown, err
}

// readIndexPage reads one page of the id index.
func readIndexPage(c *Conn, pageNumber int64) (p indexPage, err error) {
	sound := false
	_, err = database.FirstRow(c, func(r database.Row) { p, sound = parseIndexPage(r.View(0)) },
		`SELECT data FROM sqlite_dbpage WHERE pgno = ?`, pageNumber)
	if err == nil && !sound {
		err = lookupDamage("page %d of the database index jobs_id is damaged", pageNumber)
	}
	return p, err
}

// byteRange is a part of a page that an entry or a free block occupies.
type byteRange struct{ start, end int }

// parseIndexPage reads the entries of a page. It reports whether the entries and the free parts fill the page
// exactly.
func parseIndexPage(b []byte) (p indexPage, isSound bool) {
	const headerBytes = 8 // bytes of the page header; on an interior page, the number of the last child page follows
	if len(b) < headerBytes+4 {
		return p, false
	}
	offsetsStart := headerBytes
	switch b[0] {
	case leafPageKind:
	case interiorPageKind:
		offsetsStart += 4
		p.lastChild = int64(binary.BigEndian.Uint32(b[headerBytes:]))
	default:
		return p, false
	}
	number := func(at int) int { return int(binary.BigEndian.Uint16(b[at:])) }
	free, entries, content, fragments := number(1), number(3), number(5), int(b[7])
	if content < offsetsStart+2*entries || content > len(b) || b[0] == interiorPageKind && p.lastChild == 0 {
		return p, false
	}
	var usedRanges []byteRange
	for i := range entries {
		at := number(offsetsStart + 2*i)
		e, size, ok := parseIndexEntry(b[min(at, len(b)):], b[0] == interiorPageKind)
		if !ok {
			return p, false
		}
		p.entries = append(p.entries, e)
		usedRanges = append(usedRanges, byteRange{at, at + size})
	}
	for at := free; at != 0; {
		if at+4 > len(b) {
			return p, false
		}
		next, size := number(at), number(at+2)
		if size < 4 || next != 0 && next <= at {
			return p, false
		}
		usedRanges = append(usedRanges, byteRange{at, at + size})
		at = next
	}
	slices.SortFunc(usedRanges, func(a, b byteRange) int { return cmp.Compare(a.start, b.start) })
	end := content
	for _, u := range append(usedRanges, byteRange{len(b), len(b)}) {
		if u.start < end {
			return p, false
		}
		fragments -= u.start - end
		end = u.end
	}
	return p, fragments == 0
}

// parseIndexEntry reads an entry, which holds an id and a seq. It returns how many bytes the entry takes.
// An id is too short to need an overflow page.
func parseIndexEntry(b []byte, isInterior bool) (e indexEntry, entryBytes int, ok bool) {
	if isInterior {
		if len(b) < 4 {
			return e, 0, false
		}
		e.child, entryBytes = int64(binary.BigEndian.Uint32(b)), 4
	}
	payload, n := shortVarint(b[entryBytes:])
	entryBytes += n
	if n == 0 || entryBytes+payload > len(b) || isInterior && e.child == 0 {
		return e, 0, false
	}
	record := b[entryBytes : entryBytes+payload]
	header, n1 := shortVarint(record)
	text, n2 := shortVarint(record[n1:])
	seq, n3 := shortVarint(record[n1+n2:])
	seqBytes := map[int]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
	length := (text - 13) / 2
	bytes, known := seqBytes[seq]
	if n1*n2*n3 == 0 || header != n1+n2+n3 || text < 13 || text%2 == 0 || !known || header+length+bytes != payload {
		return e, 0, false
	}
	e.id = string(record[header : header+length])
	return e, max(4, entryBytes+payload), true
}

// shortVarint reads an SQLite varint of one or two bytes, which is enough for the entries of the id index.
// length is the number of bytes, or 0 if b does not begin with such a varint.
func shortVarint(b []byte) (value, length int) {
	switch {
	case len(b) > 0 && b[0] < 0x80:
		return int(b[0]), 1
	case len(b) > 1 && b[1] < 0x80:
		return int(b[0]&0x7f)<<7 | int(b[1]), 2
	}
	return 0, 0
}
