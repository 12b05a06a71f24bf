package database

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// JoinNumbers joins numbers into a text, separated by spaces. This text is the argument of a condition from
// Statements.ColumnInNumbersSQL.
func JoinNumbers[N int | int64](numbers iter.Seq[N]) string {
	var text []byte
	for n := range numbers {
		text = append(strconv.AppendInt(text, int64(n), 10), ' ')
	}
	return strings.TrimSpace(string(text))
}

// LeaseReservation is the lease of a job that was claimed and is not known to have started.
type LeaseReservation struct {
	Fence  int64
	NodeID int64 // node that claimed the job; 0 in a database that only one process uses
}

// ParseLeaseReservations parses a list of reservations, such as the column "reserved" of the table "meta". The keys of
// the result are the seqs of the jobs.
func ParseLeaseReservations(list string) (map[int64]LeaseReservation, error) {
	return parseList(list, func(n [4]int64) (int64, LeaseReservation) {
		return n[0],
			LeaseReservation{Fence: n[1], NodeID: n[2]}
	})
}

// ReadLeaseReservations reads and parses the column "reserved" of the table "meta".
func ReadLeaseReservations(c Querier) (map[int64]LeaseReservation, error) {
	list, err := QueryText(c, `SELECT reserved FROM meta`)
	if err != nil {
		return nil, err
	}
	return ParseLeaseReservations(list)
}

// AppendLeaseReservation appends a reservation to a list in the form that ParseLeaseReservations reads.
func AppendLeaseReservation(list []byte, jobSeq, fence, nodeID int64) []byte {
	list = append(strconv.AppendInt(list, jobSeq, 10), '/')
	list = strconv.AppendInt(list, fence, 10)
	if nodeID != 0 {
		list = strconv.AppendInt(append(list, '/'), nodeID, 10)
	}
	return append(list, ' ')
}

// UserCounts holds the stored counts of a user: the number of waiting jobs, the bytes that jobs and schedules
// use, and how many of these bytes are outputs. See the table users.
type UserCounts struct{ WaitingJobs, StoredBytes, OutputBytes int64 }

// ParseUserCounts parses the list in the column users of the table meta. The keys of the result are uids.
func ParseUserCounts(list string) (map[int]UserCounts, error) {
	return parseList(list, func(n [4]int64) (int, UserCounts) { return int(n[0]), UserCounts{n[1], n[2], n[3]} })
}

// parseList parses a list of entries that are separated by spaces. Each entry consists of numbers; see
// ParseSlashNumbers. convert makes a key and a value from the numbers of an entry.
func parseList[K comparable, V any](list string, convert func(n [4]int64) (K, V)) (map[K]V, error) {
	parsed := map[K]V{}
	for entry := range strings.FieldsSeq(list) {
		n, err := ParseSlashNumbers(entry)
		if err != nil {
			return nil, err
		}
		key, value := convert(n)
		parsed[key] = value
	}
	return parsed, nil
}

// ParseSlashNumbers parses two to four numbers that are separated by slashes. Missing numbers are 0.
func ParseSlashNumbers(entry string) (n [4]int64, err error) {
	parts := strings.Split(entry, "/")
	for i := 0; err == nil && i < min(len(parts), len(n)); i++ {
		n[i], err = strconv.ParseInt(parts[i], 10, 64)
	}
	if err != nil || len(parts) < 2 || len(parts) > len(n) {
		return n, DamageError(fmt.Sprintf(`the table "meta" is damaged: it contains %q instead of a list of numbers`, entry))
	}
	return n, nil
}
