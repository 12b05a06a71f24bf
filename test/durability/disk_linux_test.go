package durability

import (
	bits "encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"

	"github.com/queuectl/queuectl/internal/testrig"
)

// diskLogPosition returns the present length of the log of a simulated disk. The log contains every write and flush
// that the disk has received.
func diskLogPosition(d *testrig.Disk) int64 {
	info, err := d.WriteLogFile.Stat()
	if err != nil {
		d.Errorf("read the length of the disk's log: %v", err)
		return 0
	}
	return info.Size()
}

// diskLogRecord is an entry of the disk's log: a write, or a flush if writtenData is empty. The field endLogPosition is
// the position in the log at which the entry ends.
type diskLogRecord struct {
	endLogPosition int64
	diskOffset     uint64
	writtenData    []byte
}

// readDiskLog reads the log of the disk.
func readDiskLog(d *testrig.Disk) (records []diskLogRecord) {
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
		records = append(records, diskLogRecord{int64(at), offset, data})
	}
	return records
}

// These constants are the kinds of power cuts. The kind determines which of the writes after the last flush survive the
// power cut.
const (
	cutKeepsAllWrites = iota
	cutKeepsNoWrites
	cutKeepsSomeWrites  // a random subset of the writes
	cutKeepsSomeSectors // a random subset of the sectors of each write
	cutKindCount
)

const sectorBytes = 512 // a disk writes a sector completely or not at all

// powerCutSimulator computes the content of the disk after each of several power cuts. Call contentAfterPowerCut in the
// order of the cuts' log positions, because powerCutSimulator applies the log only forward.
type powerCutSimulator struct {
	records            []diskLogRecord
	durableContent     []byte // content as of the last flush
	flushedRecordCount int    // number of records up to and including the last flush
	appliedRecordCount int    // number of records before the power cut
}

// contentAfterPowerCut returns the content of the disk after a power cut at a log position. All writes before the last
// flush survive. cutKind determines which of the later writes survive.
func (c *powerCutSimulator) contentAfterPowerCut(logPosition int64, cutKind int, rng *rand.Rand) []byte {
	for ; c.appliedRecordCount < len(c.records) &&
		c.records[c.appliedRecordCount].endLogPosition <= logPosition; c.appliedRecordCount++ {
		if len(c.records[c.appliedRecordCount].writtenData) > 0 {
			continue
		}
		for _, r := range c.records[c.flushedRecordCount:c.appliedRecordCount] {
			copy(c.durableContent[r.diskOffset:], r.writtenData)
		}
		c.flushedRecordCount = c.appliedRecordCount + 1
	}
	image := append([]byte(nil), c.durableContent...)
	for _, r := range c.records[c.flushedRecordCount:c.appliedRecordCount] {
		if cutKind == cutKeepsAllWrites || cutKind == cutKeepsSomeWrites && rng.IntN(2) == 0 {
			copy(image[r.diskOffset:], r.writtenData)
		}
		for at := 0; cutKind == cutKeepsSomeSectors && at < len(r.writtenData); at += sectorBytes {
			if rng.IntN(2) == 0 {
				copy(image[r.diskOffset+uint64(at):], r.writtenData[at:min(at+sectorBytes, len(r.writtenData))])
			}
		}
	}
	return image
}

// mountImage mounts an image on a loop device. The unmount also removes the loop device.
func mountImage(imagePath, mountDir string) error {
	if out, err := exec.Command("mount", "-o", "loop", imagePath, mountDir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", imagePath, err, out)
	}
	return nil
}
