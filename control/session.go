package control

import "context"

// SessionAPI informs a client about the service and about the client's own rights.
type SessionAPI interface {
	// Hello returns the version of the service and the methods that it supports. Clients also call it to find
	// out whether the service answers.
	Hello(ctx context.Context, p HelloParams) (HelloResult, error)
	// Whoami returns the caller's identity, rights and limits. The caller needs no right to call it.
	Whoami(ctx context.Context, p NoParams) (WhoamiResult, error)
}

// HelloParams describes the client. All fields are optional.
type HelloParams struct {
	ClientVersion string `json:"version,omitempty"`
}

// HelloResult describes the service.
type HelloResult struct {
	Version          string       `json:"version"`
	ProtocolVersions VersionRange `json:"protocol"`
	SupportedMethods []string     `json:"features"`
}

// VersionRange is the range of protocol versions that a service supports.
type VersionRange struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// WhoamiResult holds the caller's identity, as the kernel reports it, and the caller's rights.
type WhoamiResult struct {
	UID            int       `json:"uid"`
	User           string    `json:"user"` // name of the user
	GID            int       `json:"gid"`
	Group          string    `json:"group"`
	Groups         []OSGroup `json:"groups"` // supplementary groups, at most 1,000
	PID            int       `json:"pid"`
	Right          Right     `json:"right"`
	IncludedRights []Right   `json:"rights"` // Right and all weaker rights
	RunAsSetting   string    `json:"run_as"` // value of the setting run_as
	// JobsRunAs is the account that the caller's jobs run as. It is "" if the caller may not enqueue jobs.
	JobsRunAs string `json:"jobs_run_as"`
	// MaxPendingJobs is the maximum number of the caller's waiting jobs, and MaxRunningJobs the maximum number of the
	// caller's running jobs. 0 means unlimited.
	MaxPendingJobs int64 `json:"max_pending"`
	MaxRunningJobs int   `json:"max_running"`
	// StoredBytes is the number of bytes that the caller's jobs use. MaxBytes is the maximum of this number; 0 means
	// unlimited.
	StoredBytes    int64 `json:"bytes"`
	MaxStoredBytes int64 `json:"max_bytes"`
	// Advice says how the caller can get a right. It is "" if the caller already has a right.
	Advice string `json:"next,omitempty"`
	// ServiceKind is the kind of the service: own, system or directory. SocketPath is the path of the service's socket.
	ServiceKind string `json:"service"`
	SocketPath  string `json:"socket"`
}

// OSGroup is the id and the name of a group.
type OSGroup struct {
	GID  int    `json:"gid"`
	Name string `json:"name"`
}
