package control

// ServiceAccount is the account that packages run the service as.
const ServiceAccount = "queuectl"
