package runner

import (
	endian "encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// writeMemoryHogProgram writes a program that requests 200 MB of memory from the kernel in its first instructions. The
// program exits with 0 if it gets the memory, and with 3 if not. The program is plain machine code, because the
// start-up code of a library or a language runtime would run before the request.
func writeMemoryHogProgram(t *testing.T) (programPath string) {
	t.Helper()
	code := []byte{
		0x31, 0xff, // xor edi, edi: the kernel chooses the address
		0xbe, 0, 0, 0x80, 0x0c, // mov esi, 200 MiB
		0xba, 3, 0, 0, 0, // mov edx, PROT_READ | PROT_WRITE
		0x41, 0xba, 0x22, 0, 0, 0, // mov r10d, MAP_PRIVATE | MAP_ANONYMOUS
		0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, // mov r8, -1
		0x45, 0x31, 0xc9, // xor r9d, r9d
		0xb8, 9, 0, 0, 0, // mov eax, mmap
		0x0f, 0x05, // syscall
		0x31, 0xff, // xor edi, edi
		0x48, 0x85, 0xc0, // test rax, rax
		0x79, 5, // jns over the next instruction
		0xbf, 3, 0, 0, 0, // mov edi, 3
		0xb8, 60, 0, 0, 0, // mov eax, exit
		0x0f, 0x05, // syscall
	}
	const loadAddress, headerBytes = 0x400000, 64 + 56
	le := endian.LittleEndian
	elf := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	elf = le.AppendUint16(elf, 2)    // type: executable
	elf = le.AppendUint16(elf, 0x3e) // amd64
	elf = le.AppendUint32(elf, 1)
	elf = le.AppendUint64(elf, loadAddress+headerBytes) // entry point
	elf = le.AppendUint64(elf, 64)                      // offset of the program headers
	elf = le.AppendUint64(elf, 0)
	elf = le.AppendUint32(elf, 0)
	for _, n := range []uint16{64, 56, 1, 0, 0, 0} {
		elf = le.AppendUint16(elf, n)
	}
	elf = le.AppendUint32(elf, 1) // type: loadable
	elf = le.AppendUint32(elf, 5) // flags: read and execute
	size := uint64(headerBytes + len(code))
	for _, n := range []uint64{0, loadAddress, loadAddress, size, size, 0x1000} {
		elf = le.AppendUint64(elf, n)
	}
	programPath = filepath.Join(t.TempDir(), "greedy")
	if err := os.WriteFile(programPath, append(elf, code...), 0o755); err != nil {
		t.Fatal(err)
	}
	return programPath
}

// Without control groups, the memory limit of a job applies from the first instruction of its
// command, even if many jobs request too much memory at the same time.
func TestMemoryLimitAppliesFromFirstInstruction(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	program := writeMemoryHogProgram(t)
	if id := q.MustRunCLI("enqueue", "-q", "--max-retries", "0", "--", program); q.RunCLI("wait", id).ExitCode != 0 {
		t.Fatalf("without a limit: %+v", q.ShowJob(id))
	}
	w := q.DialService()
	jobs := make([]testrig.JSONFields, 40)
	for i := range jobs {
		jobs[i] = testrig.JSONFields{"id": fmt.Sprint("greedy-", i), "argv": []string{program}, "memory": "64M",
			"max_retries": 0}
	}
	for _, id := range w.EnqueueBatch(jobs) {
		q.RunCLI("wait", id)
		if j := q.ShowJob(id); j.State != "dead" || j.ExitCode == nil || *j.ExitCode != 3 {
			t.Errorf("%s got its 200 MB, or did not begin: %+v", id, j)
		}
	}
}
