package control

// whereLog says where the log of the system's service is.
const whereLog = `%ProgramData%\queuectl\service.log, or Event Viewer, Windows Logs, Application`
