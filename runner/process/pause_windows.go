package process

import (
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// maxListedPIDs is the maximum number of processes that tree.pids lists.
const maxListedPIDs = 1 << 16

// freezeTree suspends each process of the tree. It repeats this until two scans in a row have found no
// process to suspend. If this takes longer than the deadline, it returns the number of processes that it
// cannot suspend, at least 1.
func (r *runningCommand) freezeTree(deadline time.Time) (runningCount int) {
	if r.suspendedProcesses == nil {
		r.suspendedProcesses = map[uint32]windows.Handle{}
	}
	for calm := 0; calm < 2; calm++ {
		added := 0
		runningCount = 0
		for _, pid := range r.tree.pids() {
			if r.suspendedProcesses[pid] != 0 { // the handle of this process is open, so its pid cannot be reused
				continue
			}
			h, err := windows.OpenProcess(windows.PROCESS_SUSPEND_RESUME, false, pid)
			if err != nil {
				if err != windows.ERROR_INVALID_PARAMETER { // ERROR_INVALID_PARAMETER means that the process has ended
					runningCount++
				}
				continue
			}
			if callNTFunction(procNtSuspendProcess, h) != nil {
				windows.CloseHandle(h)
				runningCount++
				continue
			}
			r.suspendedProcesses[pid] = h
			added++
		}
		if added+runningCount == 0 {
			continue
		}
		if r.isKillRequested() || time.Now().After(deadline) {
			return max(runningCount, 1)
		}
		if calm = -1; runningCount > 0 {
			time.Sleep(10 * time.Millisecond) // the process may be about to end
		}
	}
	return 0
}

// thawTree resumes the processes of the tree that freezeTree has suspended.
func (r *runningCommand) thawTree(time.Time) (stoppedCount int) {
	for _, h := range r.suspendedProcesses {
		callNTFunction(procNtResumeProcess, h) // fails only if the process has ended
		windows.CloseHandle(h)
	}
	r.suspendedProcesses = nil
	return 0
}

// pids lists the living processes of the tree, at most maxListedPIDs.
func (t *processTree) pids() (list []uint32) {
	for room := initialPIDCapacity; room <= maxListedPIDs; room *= 4 {
		buf := make([]uintptr, 1+room) // the result begins with two 32-bit counts
		err := t.systemCalls.queryJobInfo(t.jobHandle, windows.JobObjectBasicProcessIdList, unsafe.Pointer(&buf[0]),
			uintptr(len(buf))*unsafe.Sizeof(buf[0]))
		counts := (*[2]uint32)(unsafe.Pointer(&buf[0]))
		if err == windows.ERROR_MORE_DATA && room < maxListedPIDs {
			continue
		}
		if err != nil && err != windows.ERROR_MORE_DATA {
			return nil
		}
		for _, pid := range buf[1 : 1+min(int(counts[1]), room)] {
			list = append(list, uint32(pid))
		}
		return list
	}
	return nil
}

// elapsed returns the time since the command was started, without the time that the machine slept.
func (r *runningCommand) elapsed() time.Duration {
	return r.worker.systemCalls.awakeTime() - r.awakeTimeAtStart
}
