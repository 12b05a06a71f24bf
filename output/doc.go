// Package output captures the output of an attempt, one execution of a job, as one log of limited size.
// Clients can follow the log while the attempt runs. Start with Log.
//
// The log of an ended attempt has one of two forms. A log of up to 64 KiB is stored in the database
// row of the attempt, as records without checksums (encoding.go). A larger log is stored in a file.
// The records of a file have checksums, so that damage on the disk is reported and not printed as
// output:
//
//	file    = record* trailer
//
//	record  = ┌──────┬──────┬──────┬──────────┬────────┬──────────┬────────────┬──────┐
//	          │ kind │ back │ time │ position │ length │ data sum │ header sum │ data │
//	          └──────┴──────┴──────┴──────────┴────────┴──────────┴────────────┴──────┘
//	          kind: the stream, and whether the record is a gap, which has no data
//	          back: distance in bytes to the stream's previous record; 0 for its first record
//	          position: bytes that the stream had printed before this record
//
//	trailer = kind, the offset of each stream's last record, the bytes that each stream printed,
//	          the trailer's own offset, sum, magic
//
// Both sums are CRC-32C. The header sum covers the header and the offset of the record in the file. So if
// some output contains a copy of a record, the copy does not count as a record. A record has at most 32 KiB
// of data, so one damaged byte costs at most 32 KiB. After damage, a reader continues at the next header
// with a correct sum. The position in this header shows exactly which bytes of the stream are missing. To
// read only the end of a stream, a reader starts at the trailer and follows the distances (back) from
// record to record.
//
// The file is written once, after the attempt has ended, and is on the disk before any result refers to it.
// Therefore a file without a trailer was cut or damaged later. While an attempt is running, clients read
// its log from the runner. If this log is large, the runner keeps it in another file. It keeps the
// checksums of this file in memory (extents.go), so damage to it is reported too.
package output
