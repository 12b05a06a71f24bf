package sqlitedb

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/store/database"
)

// A search for a job id reads the pages of an index (a B-tree) from the root page to one leaf. Damage can hide
// an entry from the search without an SQLite error. For example, a changed bit can remove the last entry of a
// leaf, or make a page refer to a wrong page of the same index.
//
// So if an id was not found, checkIndexSearchPath reads these pages again and checks each one as SQLite's
// integrity_check does. The page's entries, free blocks and fragments must fill it exactly. Its ids must
// be in order, and between the ids that led to the page. These checks cost about as much as the search.
// Writes cost nothing more.
//
// A disk may also return a page without its last write. Such a page is valid, but outdated. Only "queuectl
// doctor --verify" finds it, because it compares the entries of the index with the rows of the table.

// The first byte of a page shows its kind. These are the kinds of index pages.
const (
	interiorPageKind = 2
	leafPageKind     = 10
)

// maxIndexDepth limits the number of levels that a search descends, so that it ends even if damaged pages form
// a cycle. An index with more levels would not fit into any file.
const maxIndexDepth = 20

// indexEntry is one entry in a page of the id index. childPageNumber is the number of the page with smaller ids; it is
// 0 on a leaf.
type indexEntry struct {
	jobID           string
	childPageNumber int64
}

// indexPage is one page of the id index. lastChildPageNumber is the number of the page with ids greater than those of
// all entries; it is 0 on a leaf.
type indexPage struct {
	entries             []indexEntry
	lastChildPageNumber int64
}

// checkIndexSearchPath checks the pages of the index that SQLite has read to search for an id without finding it. It
// returns a damage error if one of these pages is damaged or contains the id.
func checkIndexSearchPath(c *Conn, jobID string) error {
	if known, err := hasKnownPageFormat(c); err != nil || !known {
		return err
	}
	page, err := c.QueryNumber(`SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND name = 'jobs_id'`)
	low, high := "", "" // all ids in the page must be between low and high; a high of "" means no upper bound
	for range maxIndexDepth {
		if err != nil {
			return err
		}
		var p indexPage
		if p, err = readIndexPage(c, page); err != nil {
			return err
		}
		for _, e := range p.entries {
			if e.jobID <= low {
				return lookupDamageErrorf("the ids in page %d of the database index jobs_id are not in order", page)
			}
			low = e.jobID
		}
		if high != "" && low >= high {
			return lookupDamageErrorf("the ids in page %d of the database index jobs_id are not in order", page)
		}
		at, found := slices.BinarySearchFunc(p.entries, jobID,
			func(e indexEntry, id string) int { return strings.Compare(e.jobID, id) })
		if found {
			return lookupDamageErrorf("a lookup does not find an id that page %d of the database index jobs_id contains", page)
		}
		if p.lastChildPageNumber == 0 {
			return nil
		}
		page, low = p.lastChildPageNumber, ""
		if at > 0 {
			low = p.entries[at-1].jobID
		}
		if at < len(p.entries) {
			page, high = p.entries[at].childPageNumber, p.entries[at].jobID
		}
	}
	return lookupDamageErrorf("the pages of the database index jobs_id form a cycle")
}

// hasKnownPageFormat reports whether parseIndexPage can read the pages of the database. They must have the default
// size and no reserved bytes at their ends. A file that another program has rewritten may have another format.
func hasKnownPageFormat(c *Conn) (hasKnownFormat bool, err error) {
	const pageBytes, reservedOffset = 4096, 20 // byte 20 of the file is the number of reserved bytes in each page
	_, err = database.ReadFirstRow(c, func(r database.Row) {
		page := r.BytesView(0)
		hasKnownFormat = len(page) == pageBytes && page[reservedOffset] == 0
	}, `SELECT data FROM sqlite_dbpage WHERE pgno = 1`)
	return hasKnownFormat, err
}

// readIndexPage reads one page of the id index.
func readIndexPage(c *Conn, pageNumber int64) (p indexPage, err error) {
	sound := false
	_, err = database.ReadFirstRow(c, func(r database.Row) { p, sound = parseIndexPage(r.BytesView(0)) },
		`SELECT data FROM sqlite_dbpage WHERE pgno = ?`, pageNumber)
	if err == nil && !sound {
		err = lookupDamageErrorf("page %d of the database index jobs_id is damaged", pageNumber)
	}
	return p, err
}

// byteRange is a part of a page that is occupied by an entry or a free block.
type byteRange struct{ start, end int }

// parseIndexPage reads the entries of a page. isSound reports whether the entries and the free
// parts fill the page exactly.
func parseIndexPage(b []byte) (p indexPage, isSound bool) {
	const headerBytes = 8 // size of the page header; on an interior page, the number of the last child follows
	if len(b) < headerBytes+4 {
		return p, false
	}
	offsetsStart := headerBytes
	switch b[0] {
	case leafPageKind:
	case interiorPageKind:
		offsetsStart += 4
		p.lastChildPageNumber = int64(binary.BigEndian.Uint32(b[headerBytes:]))
	default:
		return p, false
	}
	number := func(at int) int { return int(binary.BigEndian.Uint16(b[at:])) }
	free, entries, content, fragments := number(1), number(3), number(5), int(b[7])
	if content < offsetsStart+2*entries || content > len(b) || b[0] == interiorPageKind && p.lastChildPageNumber == 0 {
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

// parseIndexEntry reads an entry, an id and the number (seq) of its job, at the start of b. entryBytes is the
// size of the entry. Ids are so short that an entry never continues on an overflow page.
func parseIndexEntry(b []byte, isInterior bool) (e indexEntry, entryBytes int, ok bool) {
	if isInterior {
		if len(b) < 4 {
			return e, 0, false
		}
		e.childPageNumber, entryBytes = int64(binary.BigEndian.Uint32(b)), 4
	}
	payload, n := readShortVarint(b[entryBytes:])
	entryBytes += n
	if n == 0 || entryBytes+payload > len(b) || isInterior && e.childPageNumber == 0 {
		return e, 0, false
	}
	record := b[entryBytes : entryBytes+payload]
	header, n1 := readShortVarint(record)
	text, n2 := readShortVarint(record[n1:])
	seq, n3 := readShortVarint(record[n1+n2:])
	seqBytes := map[int]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
	length := (text - 13) / 2
	bytes, known := seqBytes[seq]
	if n1*n2*n3 == 0 || header != n1+n2+n3 || text < 13 || text%2 == 0 || !known || header+length+bytes != payload {
		return e, 0, false
	}
	e.jobID = string(record[header : header+length])
	return e, max(4, entryBytes+payload), true
}

// readShortVarint reads an SQLite varint (an integer of variable length) of one or two bytes. Entries of the id index
// need no longer ones. byteCount is the length of the varint, or 0 if b does not begin with such a varint.
func readShortVarint(b []byte) (value, byteCount int) {
	switch {
	case len(b) > 0 && b[0] < 0x80:
		return int(b[0]), 1
	case len(b) > 1 && b[1] < 0x80:
		return int(b[0]&0x7f)<<7 | int(b[1]), 2
	}
	return 0, 0
}
