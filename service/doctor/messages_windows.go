package doctor

const makeAccounts = "net localgroup NAME /add, net user NAME /add"

const endHung = "if the runner hangs: taskkill /F /PID %d (its jobs are then treated as lost)"

const findHung = "find the runner's pid with: tasklist /V"
