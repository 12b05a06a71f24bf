package database

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ParseNumbers parses meta.reserved or meta.users. It returns a map from each entry's first number to its second.
// ListField reads the remaining numbers.
func ParseNumbers(list string) (map[int64]int64, error) {
	byNumber := map[int64]int64{}
	for entry := range strings.FieldsSeq(list) {
		first, second, _ := strings.Cut(entry, "/")
		second, _, _ = strings.Cut(second, "/")
		n, err := strconv.ParseInt(first, 10, 64)
		m, err2 := strconv.ParseInt(second, 10, 64)
		if err = errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf(`the database is damaged: the table "meta" contains %q instead of two numbers`, entry)
		}
		byNumber[n] = m
	}
	return byNumber, nil
}

// ListField returns field i of each entry in a list that ParseNumbers can parse, by the entry's first number. It
// skips entries without that field.
func ListField(list string, i int) map[int64]int64 {
	byNumber := map[int64]int64{}
	for entry := range strings.FieldsSeq(list) {
		if parts := strings.Split(entry, "/"); len(parts) > i {
			first, _ := strconv.ParseInt(parts[0], 10, 64) // no error, because ParseNumbers has parsed the list before
			byNumber[first], _ = strconv.ParseInt(parts[i], 10, 64)
		}
	}
	return byNumber
}

// AppendReserved adds a lease to meta.reserved.
func AppendReserved(list []byte, seq, fence, node int64) []byte {
	list = appendNumbers(list, seq, fence)
	if node != 0 {
		list = append(strconv.AppendInt(append(list[:len(list)-1], '/'), node, 10), ' ')
	}
	return list
}

// appendNumbers adds an entry of two numbers to a list that ParseNumbers can parse.
func appendNumbers(list []byte, first, second int64) []byte {
	list = append(strconv.AppendInt(list, first, 10), '/')
	return append(strconv.AppendInt(list, second, 10), ' ')
}
