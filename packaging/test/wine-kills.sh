# Kills of the service, 200 or as many as QUEUECTL_KILLS says: nothing lost, nothing run
# twice. The suite has a short form. Sourced by packaging/test/wine.
programs
GOOS=windows CGO_ENABLED=0 go test -c -o "$work/kills.exe" ./test/durability
cd "$project/test/durability"
QUEUECTL_KILLS=${QUEUECTL_KILLS:-200} timeout 3600 wine "$work/kills.exe" -test.v -test.run='^TestServiceKilled$' -test.timeout=55m </dev/null
