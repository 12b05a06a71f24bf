package durability

import (
	bits "encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"

	"github.com/queuectl/queuectl/internal/testrig"
)

// logPosition returns the present length of the log of a simulated disk. The log contains every write and flush
// that the disk has received.
func logPosition(d *testrig.Disk) int64 {
	info, err := d.WriteLog.Stat()
	if err != nil {
		d.Errorf("read the length of the disk's log: %v", err)
		return 0
	}
	return info.Size()
}

// logRecord is an entry of the disk's log: a write, or a flush if data is empty. The field endPosition is the
// position in the log at which the entry ends.
type logRecord struct {
	endPosition int64
	offset      uint64
	data        []byte
}

// readRecords reads the log of the disk.
func readRecords(d *testrig.Disk) (records []logRecord) {
	d.Helper()
	raw, err := os.ReadFile(d.Path("log"))
	if err != nil {
		d.Fatal(err)
	}
	for at := 0; len(raw)-at >= 16; {
		offset, size := bits.LittleEndian.Uint64(raw[at:]), int(bits.LittleEndian.Uint64(raw[at+8:]))
		if len(raw)-at-16 < size {
			break
		}
		data := raw[at+16 : at+16+size]
		at += 16 + size
		records = append(records, logRecord{int64(at), offset, data})
	}
	return records
}

// These constants are the kinds of power cuts. A kind determines which of the writes since the last flush
// survive.
const (
	keepsAll = iota
	keepsNone
	keepsWrites  // a random subset of the writes
	keepsSectors // a random subset of the sectors of each write
	cutKindCount
)

const sectorBytes = 512 // a disk writes a sector completely or not at all

// powerCutter computes the content of the disk after each of several power cuts. Call contentAfter in the
// order of the cuts' log positions, because powerCutter applies the log only forward.
type powerCutter struct {
	records        []logRecord
	durableContent []byte // content as of the last flush
	flushedCount   int    // number of records up to and including the last flush
	writtenCount   int    // number of records before the power cut
}

// contentAfter returns the content of the disk after a power cut at a log position. All writes before the last
// flush survive. The kind of the cut determines which of the later writes survive.
func (c *powerCutter) contentAfter(position int64, kind int, rng *rand.Rand) []byte {
	for ; c.writtenCount < len(c.records) && c.records[c.writtenCount].endPosition <= position; c.writtenCount++ {
		if len(c.records[c.writtenCount].data) > 0 {
			continue
		}
		for _, r := range c.records[c.flushedCount:c.writtenCount] {
			copy(c.durableContent[r.offset:], r.data)
		}
		c.flushedCount = c.writtenCount + 1
	}
	image := append([]byte(nil), c.durableContent...)
	for _, r := range c.records[c.flushedCount:c.writtenCount] {
		if kind == keepsAll || kind == keepsWrites && rng.IntN(2) == 0 {
			copy(image[r.offset:], r.data)
		}
		for at := 0; kind == keepsSectors && at < len(r.data); at += sectorBytes {
			if rng.IntN(2) == 0 {
				copy(image[r.offset+uint64(at):], r.data[at:min(at+sectorBytes, len(r.data))])
			}
		}
	}
	return image
}

// mountImage mounts an image on a loop device. The unmount also removes the loop device.
func mountImage(image, dir string) error {
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", image, err, out)
	}
	return nil
}
