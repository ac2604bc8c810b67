// Package e2e is the end-to-end suite: scenarios on a real cluster with a real RabbitMQ, in which pods are killed, moved
// and starved while messages flow. It counts from outside: what producers had confirmed on one side, what partners
// answered and what the failure queue holds on the other. The operator's and the workers' own counts are not believed.
//
// `make e2e` runs it, with a cluster of its own. To run it by hand, the operator must be installed from config/default,
// the images of hack/e2e/partner, with the program as /partner and as /next, must be known to the nodes, and kubectl must be in
// the PATH:
//
//	KUBECONFIG=... IMG_PARTNER=localhost/redrive-partner:e2e IMG_PARTNER_NEXT=localhost/redrive-partner:e2e-next \
//		go test -tags e2e -count=1 -timeout 25m ./hack/e2e/ -v
//
// What else it reads from the environment:
//
//	E2E_HOST_IP         address of this machine as pods see it. RabbitMQ runs on this machine then, and is relayed there.
//	                    Left out, it runs in the cluster, and its ports are forwarded to the suite.
//	E2E_KUBELET         program that takes "stop" or "start" and does so with the node's kubelet. Left out, the
//	                    scenario that kills the kubelet is left out.
//	E2E_RABBITMQ_IMAGE  image of RabbitMQ in the cluster (rabbitmq:4-management)
//	E2E_EARLIER         what stands at the ends of IMG_MANAGER and IMG_WORKER in the names of an earlier build, such as -earlier.
//	                    Left out, the scenarios that install and upgrade are left out.
//	E2E_EARLIER_TREE    folder with the source of that build, whose installer and chart are used
//	E2E_SHORT=1         only what takes a few minutes
//	E2E_KEEP=1          leave namespaces and vhosts of the scenarios standing
//	E2E_EVIDENCE        folder for the logs of all pods and the objects of all scenarios (a temporary one)
//	AMQP_URL and        a RabbitMQ that runs already, with an administrator. It must be reachable from the cluster under
//	MANAGEMENT_URL      the same address where E2E_HOST_IP is empty. It is never restarted.
//
// Every scenario has a namespace, a vhost and users of its own and is run in a namespace that enforces the restricted Pod
// Security Standard, with the rights on the broker that docs/rights.md names and no others. When all are through, whatever
// was logged, shown or kept is searched for the passwords that were in use.
package e2e
