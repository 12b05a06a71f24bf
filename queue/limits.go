package queue

import "slices"

// EnforcementExtent says how far a limit of jobs is enforced.
type EnforcementExtent int

// These are the values of EnforcementExtent.
const (
	Unenforced         EnforcementExtent = iota
	EnforcedPerProcess                   // enforced for each process, but not for all processes of a job together
	Enforced                             // enforced as specified
)

// LimitEnforcement describes how one limit of jobs is enforced on the machine that runs the jobs.
type LimitEnforcement struct {
	LimitField string // name of the job field with the limit
	Extent     EnforcementExtent
	Mechanism  string // mechanism that enforces the limit, or why none does
}

// jobLimits lists the job fields that contain limits. For each field, has reports whether a job has the limit.
var jobLimits = []struct {
	name string
	has  func(j *Job) bool
}{
	{"memory", func(j *Job) bool { return j.MemoryBytes != 0 }},
	{"cpus", func(j *Job) bool { return j.CPUs != 0 }},
	{"tasks", func(j *Job) bool { return j.Tasks != 0 }},
	{"nice", func(j *Job) bool { return j.Nice != 0 }},
	{"nofile", func(j *Job) bool { return j.MaxOpenFiles != 0 }},
	{"no_new_privileges", func(j *Job) bool { return j.NoNewPrivileges }},
}

// EnforcementsOfAllLimits returns one entry for each limit. If knownEnforcements has an entry for a limit, it returns a
// copy of that entry. Otherwise the entry says that the limit is not enforced.
func EnforcementsOfAllLimits(knownEnforcements []LimitEnforcement) (enforcements []LimitEnforcement) {
	for _, l := range jobLimits {
		e := LimitEnforcement{LimitField: l.name,
			Mechanism: "the runners, which supervise jobs, have not reported that they can enforce it"}
		if i := slices.IndexFunc(knownEnforcements, func(e LimitEnforcement) bool { return e.LimitField == l.name }); i >= 0 {
			e = knownEnforcements[i]
		}
		enforcements = append(enforcements, e)
	}
	return enforcements
}

// AnyJobHasLimit reports whether at least one of the jobs has a limit.
func AnyJobHasLimit(jobs []Job) bool {
	return slices.ContainsFunc(jobs, func(j Job) bool { return j.ResourceLimits != ResourceLimits{} })
}

// UnenforcedLimit is a limit that is not fully enforced. FirstJobIndex is the index of the first job in a list with
// this limit.
type UnenforcedLimit struct {
	LimitEnforcement
	FirstJobIndex int
}

// UnenforcedLimits returns the limits that some of the jobs have and that are not fully enforced, in the order
// of jobLimits.
func UnenforcedLimits(jobs []Job, knownEnforcements []LimitEnforcement) (unenforcedLimits []UnenforcedLimit) {
	for i, e := range EnforcementsOfAllLimits(knownEnforcements) {
		if e.Extent == Enforced {
			continue
		}
		if at := slices.IndexFunc(jobs, func(j Job) bool { return jobLimits[i].has(&j) }); at >= 0 {
			unenforcedLimits = append(unenforcedLimits, UnenforcedLimit{e, at})
		}
	}
	return unenforcedLimits
}
