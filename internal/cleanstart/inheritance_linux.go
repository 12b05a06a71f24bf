package cleanstart

import (
	"cmp"
	"fmt"
	"math/bits"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// commandOOMScore is the oom_score_adj of every command of a job. When memory runs out, the kernel first ends the
// process with the highest score. The commands should end before the service and the runner, so the service and the
// runner must not have a higher score.
const commandOOMScore = 200

// DescribeInheritedAttributes describes each attribute that this process inherited from its caller and could not reset.
// Each description says what the attribute means for jobs.
func DescribeInheritedAttributes() []string {
	// Compare the attributes with those of process 1, which has the usual attributes of the machine or container.
	own, first := readProcStatus("self"), readProcStatus("1")
	var list attributeDescriptions
	list.addScheduling(own, first)
	list.addResourceLimits()
	list.addRestrictions(own, first)
	list.addGroupDifferences()
	return append(list, describeInheritedSystemdUnit()...)
}

// attributeDescriptions lists the descriptions that DescribeInheritedAttributes returns.
type attributeDescriptions []string

// addIfInherited adds the description of an attribute if isInherited is true.
func (l *attributeDescriptions) addIfInherited(isInherited bool, format string, args ...any) {
	if isInherited {
		*l = append(*l, fmt.Sprintf(format, args...))
	}
}

// addScheduling adds descriptions of the scheduling attributes that differ from the usual ones. ownStatus is
// /proc/PID/status of this process, and initStatus that of process 1.
func (l *attributeDescriptions) addScheduling(ownStatus, initStatus procStatus) {
	nice := NiceValue()
	l.addIfInherited(nice != 0, "every job starts with the nice value %d and can only raise it", nice)
	if policy, err := unix.SchedGetAttr(0, 0); err == nil {
		l.addIfInherited(policy.Policy != unix.SCHED_NORMAL, "every job runs with the scheduling policy %s",
			schedulingPolicyName(policy.Policy))
	}
	l.addIfInherited(ownStatus.countMaskBits("Cpus_allowed") < initStatus.countMaskBits("Cpus_allowed"),
		"jobs can use only the processors %s of %s", ownStatus["Cpus_allowed_list"], initStatus["Cpus_allowed_list"])
	l.addIfInherited(ownStatus.countMaskBits("Mems_allowed") < initStatus.countMaskBits("Mems_allowed"),
		"jobs can use only the memory (NUMA) nodes %s of %s", ownStatus["Mems_allowed_list"], initStatus["Mems_allowed_list"])
	raw, _ := os.ReadFile("/proc/self/oom_score_adj")
	score, _ := strconv.Atoi(strings.TrimSpace(string(raw))) // 0 if the file cannot be read
	l.addIfInherited(score > commandOOMScore,
		"when memory runs out, the kernel ends the service and its runner before their "+
			"jobs, because oom_score_adj is %d", score)
}

// schedulingPolicyName returns the name of a scheduling policy, or its number.
func schedulingPolicyName(policy uint32) string {
	names := map[uint32]string{unix.SCHED_BATCH: "SCHED_BATCH", unix.SCHED_IDLE: "SCHED_IDLE"}
	return cmp.Or(names[policy], strconv.Itoa(int(policy)))
}

func (l *attributeDescriptions) addResourceLimits() {
	for _, limit := range freshProcessResourceLimits {
		var current unix.Rlimit
		if limit.name != "" && unix.Prlimit(0, limit.rlimitNumber, nil, &current) == nil {
			l.addIfInherited(current.Max < limit.defaultHardLimit(),
				"no job can raise its limit for %s above the hard limit of %d%s",
				limit.name, current.Max, limit.unit)
		}
	}
}

// defaultHardLimit returns the hard limit of a fresh process, or 0 if it is unknown.
func (l resourceLimit) defaultHardLimit() uint64 {
	if l.rlimitNumber != unix.RLIMIT_NPROC {
		return l.hardLimit
	}
	raw, _ := os.ReadFile("/proc/sys/kernel/threads-max")
	// most is 0 if the file cannot be read. Then DescribeInheritedAttributes reports nothing about this limit.
	most, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return most / 2
}

// addRestrictions adds descriptions of the restrictions of this process that process 1 does not have. The restrictions
// of a container apply to both processes, so addRestrictions does not report them.
func (l *attributeDescriptions) addRestrictions(ownStatus, initStatus procStatus) {
	l.addIfInherited(ownStatus["NoNewPrivs"] == "1" && initStatus["NoNewPrivs"] == "0",
		"sudo and other set-user-id programs do not work in jobs, because no_new_privs is set")
	l.addIfInherited(initStatus != nil && ownStatus["Seccomp_filters"] != initStatus["Seccomp_filters"] &&
		ownStatus["Seccomp"] != "0",
		"every job runs with a seccomp filter, so the system calls that it blocks fail")
	l.addIfInherited(ownStatus.countMaskBits("CapBnd") < initStatus.countMaskBits("CapBnd"),
		"jobs that run as root lack capabilities, because the bounding set is %s instead of %s",
		ownStatus["CapBnd"], initStatus["CapBnd"])
	securebits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err == nil {
		l.addSecurebits(securebits, initStatus)
	}
	mdwe, err := unix.PrctlRetInt(unix.PR_GET_MDWE, 0, 0, 0, 0)
	l.addIfInherited(err == nil && mdwe != 0,
		"programs with a just-in-time compiler fail in jobs, because writable memory "+
			"cannot be made executable (PR_SET_MDWE)")
}

// addSecurebits adds the securebit SECBIT_NOROOT, with which no program gets capabilities because it runs as root. The
// securebits of process 1 cannot be read. If process 1 runs as root and lacks capabilities itself, the bit probably
// applies to the whole container, so addSecurebits does not report it.
func (l *attributeDescriptions) addSecurebits(securebits int, initStatus procStatus) {
	const secbitNoRoot = 1                       // from linux/securebits.h
	initIDs := strings.Fields(initStatus["Uid"]) // the real and effective uids, and others
	initLacksCapabilities := len(initIDs) > 1 && initIDs[1] == "0" &&
		initStatus.countMaskBits("CapPrm") < initStatus.countMaskBits("CapBnd")
	l.addIfInherited(securebits&secbitNoRoot != 0 && !initLacksCapabilities,
		"jobs that run as root lack capabilities, because the securebit SECBIT_NOROOT is set (securebits is %#x)", securebits)
}

// addGroupDifferences adds the differences between the groups of this process and those that /etc/passwd and /etc/group
// list for the account. It ignores accounts and groups from other sources.
func (l *attributeDescriptions) addGroupDifferences() {
	account, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return
	}
	given, err := account.GroupIds()
	if err != nil {
		return
	}
	primary := strconv.Itoa(os.Getegid())
	l.addIfInherited(primary != account.Gid,
		"files that jobs create belong to the group %s instead of the group %s, because "+
			"%[1]s is the primary group of the service's process", groupName(primary), groupName(account.Gid))
	groups, _ := os.Getgroups()
	for _, gid := range groups {
		id := strconv.Itoa(gid)
		_, err := user.LookupGroupId(id)
		l.addIfInherited(err == nil && id != account.Gid && id != primary && !slices.Contains(given, id),
			"jobs have the rights of the group %s, although the user %s is not a member", groupName(id), account.Username)
	}
	for _, id := range given {
		gid, _ := strconv.Atoi(id)
		l.addIfInherited(id != account.Gid && id != primary && !slices.Contains(groups, gid),
			"jobs lack the rights of the group %s, although the user %s is a member", groupName(id), account.Username)
	}
}

// groupName returns the name of a group, or its gid if no name is found.
func groupName(id string) string {
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}

// describeInheritedSystemdUnit describes the systemd unit of the caller and the limits of this unit, if this process is
// in the unit. When the unit ends, systemd also ends this process.
func describeInheritedSystemdUnit() []string {
	raw, _ := os.ReadFile("/proc/self/cgroup") // without this file, no unit is reported
	return describeSystemdUnit(string(raw), func(file string) string {
		raw, _ := os.ReadFile("/sys/fs/cgroup" + file)
		return strings.TrimSpace(string(raw))
	})
}

// cgroupLimitFiles are the files of a control group that contain limits for all its processes together.
var cgroupLimitFiles = []string{"memory.max", "memory.high", "cpu.max", "pids.max"}

// describeSystemdUnit implements describeInheritedSystemdUnit. procCgroup is the content of /proc/self/cgroup. readFile
// returns the content of a file below /sys/fs/cgroup, without the final line break.
func describeSystemdUnit(procCgroup string, readFile func(file string) string) (descriptions []string) {
	group := ""
	for line := range strings.Lines(procCgroup) {
		if at, unified := strings.CutPrefix(line, "0::"); unified {
			group = strings.TrimSpace(at)
		}
	}
	unit := ""
	for _, name := range strings.Split(group, "/") {
		if strings.HasSuffix(name, ".service") && !strings.HasPrefix(name, "user@") {
			unit = name
		}
	}
	if unit == "" {
		return nil
	}
	descriptions = []string{fmt.Sprintf("the queuectl service runs in the control group of %s, so systemd also ends "+
		"the service when it stops this unit", unit)}
	for dir := group; strings.Contains(dir, unit); dir = path.Dir(dir) {
		for _, name := range cgroupLimitFiles {
			if value := readFile(path.Join(dir, name)); value != "" && !strings.HasPrefix(value, "max") {
				descriptions = append(descriptions, fmt.Sprintf("the limit %s (%s) of %s applies to all jobs together",
					name, value, unit))
			}
		}
	}
	return descriptions
}

// procStatus contains the values in /proc/PID/status by the name of the field. It is nil if the file cannot be read.
type procStatus map[string]string

func readProcStatus(pid string) procStatus {
	raw, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return nil
	}
	s := procStatus{}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		s[name] = strings.TrimSpace(value)
	}
	return s
}

// countMaskBits counts the members of a set, such as a set of processors. maskField is the name of the field that
// contains the set as a hexadecimal mask.
func (s procStatus) countMaskBits(maskField string) (n int) {
	for _, word := range strings.Split(s[maskField], ",") {
		part, _ := strconv.ParseUint(word, 16, 64)
		n += bits.OnesCount64(part)
	}
	return n
}
