// Package output captures an attempt's output as one capped log of both streams, which can be
// followed while it grows. Start at Log.
//
// An ended attempt keeps its log in one of two forms. Up to 64 KiB are part of the attempt's
// row, as plain records (code.go). More is in a file, whose records carry checksums, so that
// damage on the disk is reported instead of printed as output:
//
//	file    = record* trailer
//
//	record  = ┌──────┬──────┬──────┬──────────┬────────┬──────────┬────────────┬──────┐
//	          │ kind │ back │ time │ position │ length │ data sum │ header sum │ data │
//	          └──────┴──────┴──────┴──────────┴────────┴──────────┴────────────┴──────┘
//	          kind: the stream, and whether the record is a gap, which has no data
//	          back: bytes back to the stream's record before this one; 0 for its first record
//	          position: bytes that the stream had printed before this record
//
//	trailer = kind, the place of each stream's last record, the bytes that each stream printed,
//	          the trailer's own place, sum, magic
//
// Both sums are CRC-32C. A header sum covers the header and the record's place in the file, so
// that a copy of a record within some output is not taken for a record. A record has at most
// 32 KiB of data: that is how much one damaged byte costs. After damage a reader resumes at
// the next header whose sum is right, and the positions there say exactly which bytes of
// which stream are missing. The links lead from the trailer back through each stream, so that
// its end can be read without the rest.
//
// The file is written once, when the attempt has ended, and is on the disk before any result
// names it. So one that ends without a trailer was cut or damaged later. While an attempt
// runs, its log is read from the runner that keeps it. What is in the runner's own file for the log
// has checksums in the runner's memory (extents.go), so damage there is reported too.
package output
