// Package launcher contains everything that has root's rights on the way from a service without rights
// to a process that runs a job of another account.
//
// The service parses JSON, HTTP and job data of every user, so it has no rights. It can ask for one
// thing only: a runner. The path of that request, from start to end:
//
//  1. The service connects to a socket and sends one line, a runner.SpawnRequest. The socket belongs to
//     systemd (queuectl-runner.socket) or, on systems without systemd, to the launcher: a process that
//     the service starts while it is still root (runner.StartLauncher, Launch). Only the service's
//     account and root can connect.
//  2. For each connection, systemd or Launch starts this program as root, with the connection as
//     standard input. The program calls Accept. The kernel, not the service, identifies the peer.
//  3. Accept creates the runners' directory. The directory belongs to root, and the service's group can
//     read but not change it (createSharedDir). Accept then reads the policy file, which only root can change.
//     The policy, not the service, says whose jobs may run.
//  4. If the request names an account, Accept checks it against the policy, reads the credentials that
//     the policy gives to the account, and switches to the account for good (switchAccount). From then
//     on the process has no more rights than the account.
//  5. If the request names no account, the process stays root. It then asks Accounts about the account
//     of each job, and AllowedCredential about each credential that a job names. It starts each job under the
//     job's account.
//  6. Accept returns a Grant. The process runs the runner that the Grant describes (package daemon), and
//     replies to the service with ReplyReady or ReplyError.
//  7. The service connects to the runner's socket. The runner accepts only the account that the kernel
//     named in step 2, and root.
//
// A request can also name a runner to be killed, because the service cannot signal a process of root.
// killNamedRunner accepts only the name of a runner's directory. It kills the process that the running
// table in that directory names. An account can write anything into its runners' tables, so a process
// that an account's table names is killed only if it belongs to the account.
//
// Between fork and exec, a child of a root runner already has the ids of the job's account, whose user
// can stop it. The child would then stop the runner of all users. So a root runner starts a Watchdog,
// which kills such children. The watchdog does a second task for runners of every kind: it ends the jobs
// of a runner that dies or hangs when the leases of its service expire.
//
// Start with Accept. The policy and the credentials exist only on Linux.
package launcher
