// Package launcher contains the steps, done with root's rights, by which a service without special rights
// gets a runner that can run jobs of other accounts.
//
// The service parses JSON, HTTP and job data of every user, so it must not have root's rights. It can
// request only one thing from root: a runner. The steps of a request are:
//
//  1. The service connects to a socket and sends one line, a runner.SpawnRequest. On systems with systemd,
//     the socket is the unit queuectl-runner.socket. On other systems, it belongs to the launcher, a
//     process that the service starts while it is still root (runner.StartLauncher, RunLauncher).
//     Only the service's account and root can connect.
//  2. For each connection, systemd or the launcher starts this program as root, with the connection as
//     standard input. The program calls HandleSpawnRequest. It gets the account of the service from the
//     kernel, so the service cannot lie about it.
//  3. HandleSpawnRequest creates the runners' directory. The directory belongs to root, and the service's
//     group can read but not change it (createSharedDir). Then it reads the policy file, which only root can
//     change. The policy says whose jobs may run.
//  4. If the request names an account, the process checks whether the policy allows its jobs. It reads the
//     credentials that the policy gives to the account, and switches to the account permanently
//     (switchAccount). From then on the process has no more rights than the account.
//  5. If the request names no account, the process stays root. It starts each job under the job's account.
//     Before that, it uses Accounts to check the account, and ReadAllowedCredential to check each credential
//     that the job names.
//  6. HandleSpawnRequest returns an AcceptedSpawnRequest. The process runs the runner that it describes (package
//     daemon), and replies to the service with ReplyReady or ReplyError.
//  7. The service connects to the runner's socket. The runner accepts only root and the account that the
//     kernel named in step 2.
//
// A request can also name a runner to be killed, because the service cannot signal a process of root.
// killNamedRunner accepts only the name of a runner's directory. It kills the process that the running
// table in this directory names as the runner. An account can write anything into the tables of its
// runners. So for such a table, killNamedRunner kills the process only if it belongs to the account.
//
// Between fork and exec, a child of a runner of root already has the ids of the job's account. The job's
// user can therefore stop the child by a signal. The runner, which waits for the child, would then hang,
// and with it the jobs of all users. So a runner of root starts a Watchdog, which kills such children. The
// watchdog has a second task, for all kinds of runners. If a runner dies or hangs when the leases of its
// service expire, the watchdog ends the runner's jobs.
//
// Start with HandleSpawnRequest. The policy and the credentials exist only on Linux.
package launcher
