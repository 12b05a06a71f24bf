package sql

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
)

// A lookup in the index of ids descends from the root to one leaf. Damage can hide an entry from it without an error of
// SQLite: a changed bit makes a leaf one entry shorter, or a page refers to another one of the same index. So if an id was
// not found, checkIndexPath descends again and checks each page as integrity_check does: its entries, free blocks and
// fragments fill the page exactly, and its keys are in order and between the keys that led to it. This takes about as long
// as the lookup, and writers pay nothing for it.
//
// A page that the disk returns as it was before its last write is sound by itself. Only doctor --verify finds it, because
// it compares the entries of the index with the rows of the table.

// The kinds of pages of an index, by their first byte.
const (
	interiorIndex = 2
	leafIndex     = 10
)

// maxIndexDepth bounds the descent: an index with this many levels would be larger than a file can be.
const maxIndexDepth = 20

// indexEntry is one entry of a page of the index of ids. child is the page of the ids before it, 0 on a leaf.
type indexEntry struct {
	id    string
	child int64
}

// indexPage is a page of the index of ids. last is the page of the ids after all entries, 0 on a leaf.
type indexPage struct {
	entries []indexEntry
	last    int64
}

// checkIndexPath reports damage if a page on the way to an id that was not found is damaged, or holds the id.
func checkIndexPath(c *liteConn, id string) error {
	page, err := c.number(`SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND name = 'jobs_id'`)
	low, high := "", "" // ids between which those of the page are; high is "" if there is no bound
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
				return lookupDamage("the ids in page %d of their index are not in order", page)
			}
			low = e.id
		}
		if high != "" && low >= high {
			return lookupDamage("the ids in page %d of their index are not in order", page)
		}
		at, found := slices.BinarySearchFunc(p.entries, id, func(e indexEntry, id string) int { return strings.Compare(e.id, id) })
		if found {
			return lookupDamage("the index of ids has an entry that a lookup does not find, in page %d", page)
		}
		if p.last == 0 {
			return nil
		}
		page, low = p.last, ""
		if at > 0 {
			low = p.entries[at-1].id
		}
		if at < len(p.entries) {
			page, high = p.entries[at].child, p.entries[at].id
		}
	}
	return lookupDamage("the index of ids refers to itself")
}

// readIndexPage reads a page of the index of ids.
func readIndexPage(c *liteConn, number int64) (p indexPage, err error) {
	sound := false
	err = c.query(func(r row) (bool, error) {
		p, sound = parseIndexPage(r.view(0))
		return false, nil
	}, `SELECT data FROM sqlite_dbpage WHERE pgno = ?`, number)
	if err == nil && !sound {
		err = lookupDamage("page %d of the index of ids is damaged", number)
	}
	return p, err
}

// span is a part of a page that is in use.
type span struct{ start, end int }

// parseIndexPage reads the entries of a page. It reports whether they and the free parts fill the page exactly.
func parseIndexPage(b []byte) (p indexPage, sound bool) {
	const head = 8 // bytes before the last child's number, or before the places of the entries
	if len(b) < head+4 {
		return p, false
	}
	places := head
	switch b[0] {
	case leafIndex:
	case interiorIndex:
		places += 4
		p.last = int64(binary.BigEndian.Uint32(b[head:]))
	default:
		return p, false
	}
	number := func(at int) int { return int(binary.BigEndian.Uint16(b[at:])) }
	free, entries, content, fragments := number(1), number(3), number(5), int(b[7])
	if content < places+2*entries || content > len(b) || b[0] == interiorIndex && p.last == 0 {
		return p, false
	}
	var used []span
	for i := range entries {
		at := number(places + 2*i)
		e, size, ok := parseIndexEntry(b[min(at, len(b)):], b[0] == interiorIndex)
		if !ok {
			return p, false
		}
		p.entries = append(p.entries, e)
		used = append(used, span{at, at + size})
	}
	for at := free; at != 0; {
		if at+4 > len(b) {
			return p, false
		}
		next, size := number(at), number(at+2)
		if size < 4 || next != 0 && next <= at {
			return p, false
		}
		used = append(used, span{at, at + size})
		at = next
	}
	slices.SortFunc(used, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	end := content
	for _, u := range append(used, span{len(b), len(b)}) {
		if u.start < end {
			return p, false
		}
		fragments -= u.start - end
		end = u.end
	}
	return p, fragments == 0
}

// parseIndexEntry reads an entry, an id and a seq, and returns how many bytes it takes. An entry of an id never needs
// an overflow page.
func parseIndexEntry(b []byte, interior bool) (e indexEntry, size int, ok bool) {
	if interior {
		if len(b) < 4 {
			return e, 0, false
		}
		e.child, size = int64(binary.BigEndian.Uint32(b)), 4
	}
	payload, n := shortVarint(b[size:])
	size += n
	if n == 0 || size+payload > len(b) || interior && e.child == 0 {
		return e, 0, false
	}
	record := b[size : size+payload]
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
	return e, max(4, size+payload), true
}

// shortVarint reads a number of SQLite's variable length that has one or two bytes, as those of an id's entry have. n is 0
// if b has no such number.
func shortVarint(b []byte) (value, n int) {
	switch {
	case len(b) > 0 && b[0] < 0x80:
		return int(b[0]), 1
	case len(b) > 1 && b[1] < 0x80:
		return int(b[0]&0x7f)<<7 | int(b[1]), 2
	}
	return 0, 0
}
