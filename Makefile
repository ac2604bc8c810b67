# Redrive's tasks; `make` alone lists them. Each needs Go, and what it says it needs, nothing else.

SHELL := /usr/bin/env bash -o pipefail -e
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
IMG_MANAGER ?= redrive-manager:latest
IMG_WORKER ?= redrive-worker:latest
KUBECTL ?= kubectl
DOCKER ?= docker
# More flags of go test, for instance TEST_FLAGS='-race -run TestKill'.
TEST_FLAGS ?=
# The same for the end-to-end suite.
E2E_FLAGS ?=

LDFLAGS := -s -w -X redrive.dev/redrive/internal/version.version=$(VERSION)
BUILD := CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)'
TOOL := go tool -modfile=hack/tools/go.mod
LINT := go tool -modfile=hack/tools/lint/go.mod golangci-lint
# Every module of the repository. Those below hack/ keep the programs that they pin out of the operator's own go.mod.
MODULES := . hack/tools hack/tools/helm hack/tools/kwok hack/tools/lint hack/envtest/etcd hack/envtest/kubernetes hack/cluster/coredns hack/monitoring
# Versions of Kubernetes beside the newest: the code of each is asked whether it takes the CRDs, and its API server is started. Each has a
# modfile in hack/crds, and one in hack/envtest/kubernetes.
KUBERNETES ?= 1.25 1.29 1.33
# Packages whose tests need neither a RabbitMQ nor an API server, under -short.
PURE := ./api/... ./internal/compile/... ./internal/handler/... ./internal/manifest/... ./internal/message/... ./internal/policytest/... \
	./internal/retry/... ./internal/topology/... ./internal/version/... ./internal/workload/...
# The packages whose tests take longest: started first, none of them is left to run alone at the end.
LONGEST := ./internal/worker ./controllers ./cmd/worker ./internal/amqp ./internal/apply ./internal/cli ./internal/handler ./hack/chart

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Development

.PHONY: generate
generate: ## Write the deep copies of the kinds from their types.
	$(TOOL) controller-gen object paths=./api/...

.PHONY: manifests
manifests: ## Write the CRDs and the manager's role from the markers in the code.
	$(TOOL) controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	@mkdir -p bin
	@# controller-gen gives no bounds to an int-or-string, and a rule in CEL for one is too dear before Kubernetes 1.34.
	awk '{ print } /^ *perSecond:$$/ { rate = 1 } \
		rate && /maxLength: 10$$/ { sub(/maxLength.*/, ""); print $$0 "maximum: 1000000"; print $$0 "minimum: 1"; rate = 0 }' \
		config/crd/bases/redrive.dev_transports.yaml > bin/transports.yaml && mv bin/transports.yaml config/crd/bases/redrive.dev_transports.yaml
	@# Where no marker counts, controller-gen writes no role and says nothing: an old one must not pass for new.
	@mkdir -p bin/rbac && rm -f bin/rbac/role.yaml
	$(TOOL) controller-gen rbac:roleName=redrive-manager paths=./controllers/... output:rbac:dir=bin/rbac
	@if [[ ! -s bin/rbac/role.yaml ]]; then \
		echo "manifests: no +kubebuilder:rbac marker counts: they must stand before a function, with an empty line between" >&2; \
		exit 1; \
	fi
	@mv bin/rbac/role.yaml config/rbac/role.yaml

.PHONY: chart
chart: ## Write the templates of the Helm chart, config/chart, from config/default.
	go run ./hack/chart

.PHONY: tidy
tidy: ## Tidy the go.mod of each module.
	for module in $(MODULES); do go -C $$module mod tidy; done

.PHONY: fmt
fmt: ## Format the Go code.
	$(LINT) fmt

.PHONY: vet
vet: ## Run go vet.
	go vet -tags e2e ./...

.PHONY: lint
lint: ## Run golangci-lint.
	$(LINT) run --allow-parallel-runners

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what the programs call; where their database cannot be reached, say so.
	hack/vulncheck.sh ./cmd/... ./handler/...

.PHONY: licenses
licenses: ## List the modules in the programs with their licences, and fail where one is not allowed.
	go run ./hack/licenses

# The files as they are, changed and new ones too, but not the ignored ones, make one tree object before and one after.
# A copy of the index takes them in, so that the user's own keeps what is staged.
.PHONY: verify
verify: ## Check that generated and formatted files are up to date (it updates them), and the subjects of new commits.
	@index=$$(mktemp -u) && trap 'rm -f "$$index"' EXIT; \
	tree() { GIT_INDEX_FILE=$$index git add --all && GIT_INDEX_FILE=$$index git write-tree; }; \
	before=$$(tree); \
	$(MAKE) --no-print-directory generate manifests chart tidy; \
	go list -f '{{.Dir}}' ./... | xargs gofmt -w; \
	after=$$(tree); \
	if [[ $$before != "$$after" ]]; then \
		git --no-pager diff --stat "$$before" "$$after"; \
		echo "verify: these files were out of date; make generate, manifests, chart, tidy and fmt renew them." >&2; \
		echo "In this folder that is done now: look at them and commit them." >&2; \
		exit 1; \
	fi
	@hack/commits.sh
	@echo "verify: all up to date"

.PHONY: verify-crds
verify-crds: ## Check that API servers of KUBERNETES take the CRDs, by the code of each version.
	@for version in $(KUBERNETES); do \
		(cd hack/crds && go run -modfile=$$version.mod . ../../config/crd/bases/*.yaml) || { echo "verify-crds: Kubernetes $$version refuses the CRDs" >&2; exit 1; }; \
		echo "verify-crds: Kubernetes $$version takes the CRDs"; \
	done

##@ Tests

.PHONY: test
test: ## Run the tests, but those that take long, on a RabbitMQ and an API server of their own.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	hack/languages.sh
	assets=$$(hack/envtest.sh); \
	KUBEBUILDER_ASSETS=$$assets bin/broker -- go test -p 3 -timeout 40m $(TEST_FLAGS) $(LONGEST) ./...
	$(if $(TEST_FLAGS),,$(MAKE) --no-print-directory test-monitoring)
	$(if $(TEST_FLAGS),,$(MAKE) --no-print-directory fuzz FUZZTIME=2s)

.PHONY: test-all
test-all: ## Run all tests, also those that take long, such as each stage of a deletion killed; most of an hour on two cores.
	REDRIVE_LONG=1 $(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-kubernetes

.PHONY: test-touched
test-touched: ## Run the tests that take long of the packages that have changed since BASE; hack/touched.sh says what that is by default.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	assets=$$(hack/envtest.sh); \
	KUBEBUILDER_ASSETS=$$assets bin/broker -- hack/touched.sh $(TEST_FLAGS)

# What the operator asks of an API server: all that the API promises, and one Transport from its first to its last day.
export KUBERNETES_TESTS = go test -p 1 -count 1 -timeout 20m $(TEST_FLAGS) ./api/... && \
	go test -count 1 -timeout 20m -run 'TestTransport_LivesFromApplyToDeletion$$' $(TEST_FLAGS) ./controllers

.PHONY: test-kubernetes
test-kubernetes: ## Run the tests that ask an API server on one version of KUBERNETES after the other; hack/envtest.sh says where they come from.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	@for version in $(KUBERNETES); do \
		if ! assets=$$(hack/envtest.sh $$version); then \
			echo "test-kubernetes: Kubernetes $$version is NOT tested: there is no API server of it to be had here" >&2; \
			continue; \
		fi; \
		echo "test-kubernetes: $$($$assets/kube-apiserver --version)"; \
		KUBEBUILDER_ASSETS=$$assets REDRIVE_TARGET=test-kubernetes bin/broker -- bash -c "$$KUBERNETES_TESTS"; \
	done

# Alerts and dashboard, with Prometheus's own packages: a module of its own.
.PHONY: test-monitoring
test-monitoring: ## Test that alerts fire when they should, and that alerts and dashboard ask for what there is.
	go test -C hack/monitoring $(TEST_FLAGS) ./...

# The fuzz targets, each with the package that has it.
FUZZ := message:FuzzHeaders handler:FuzzAnswers handler:FuzzMessageFrames handler:FuzzAcknowledgements handler:FuzzHeadersOfMessages \
	handler:FuzzEncodedHeaders retry:FuzzDecisionsOnAnyMessage retry:FuzzAnyExpression topology:FuzzNames amqp:FuzzContentHeaders
FUZZTIME ?= 30s

.PHONY: fuzz
fuzz: ## Feed made-up input to the fuzz targets, FUZZTIME each; what they fail on is kept in testdata.
	@for target in $(FUZZ); do \
		echo "$$target"; \
		go test -run '^$$' -fuzz "^$${target#*:}\$$" -fuzztime $(FUZZTIME) ./internal/$${target%%:*}; \
	done

# What one tenant does to another, with the manager as it is built and installed, and the memory limit of its container where that can be set.
TENANTS := env REDRIVE_TARGET=test-tenants go test -count=1 -v -timeout 60m -run TestTenant_ ./cmd/manager

.PHONY: test-tenants
test-tenants: ## Attack the operator as a tenant would, in full; prints what the other tenant sees.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	assets=$$(hack/envtest.sh); REDRIVE_ALL_TENANTS=1 KUBEBUILDER_ASSETS=$$assets bin/broker -- $(TENANTS)

.PHONY: test-tenants-short
test-tenants-short: ## The same with fewer attacks and objects, in three minutes.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	assets=$$(hack/envtest.sh); KUBEBUILDER_ASSETS=$$assets bin/broker -- $(TENANTS)

.PHONY: test-unit
test-unit: ## Run the tests that need nothing but Go.
	go test -short $(TEST_FLAGS) $(PURE)

# Each case of the fault suite is run so often; in `make test-all` once.
FAULT_ROUNDS ?= 20

.PHONY: test-faults
test-faults: ## Run the fault suite FAULT_ROUNDS times over, on a RabbitMQ of its own.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	REDRIVE_LONG=1 FAULT_ROUNDS=$(FAULT_ROUNDS) bin/broker -- go test -count 1 -timeout 4h -v $(TEST_FLAGS) ./hack/faults

# How many messages of each kind the clients publish; `make test` has them publish three. Where Packagist is reached, the newest Symfony
# is run, too.
CLIENTS_MESSAGES ?= 50

.PHONY: test-clients
test-clients: ## Run Symfony, Celery, pika and amqplib against `redrive run`; SYMFONY_VENDOR names a vendor folder with another Symfony than Debian's.
	@mkdir -p bin
	@go build -o bin/broker ./hack/broker
	hack/languages.sh
	export CLIENTS_MESSAGES=$(CLIENTS_MESSAGES); \
	SYMFONY_VENDOR=$(abspath $(SYMFONY_VENDOR)) bin/broker -- go test -count 1 -timeout 30m $(TEST_FLAGS) ./hack/clients; \
	if [[ -z '$(SYMFONY_VENDOR)' ]] && vendor=$$(hack/clients/symfony.sh); then \
		SYMFONY_VENDOR=$$vendor bin/broker -- go test -count 1 -timeout 30m -run TestSymfony_ ./hack/clients; \
	fi

# BROKERS has the versions of RabbitMQ, and BROKER_TESTS the packages.
BROKER_TESTS ?= ./internal/amqp ./internal/worker ./internal/apply ./internal/topology ./internal/local ./internal/cli ./cmd/worker \
	./hack/faults

.PHONY: test-brokers
test-brokers: ## Run the tests that speak to a RabbitMQ on one version after the other; hack/brokers.sh says where they come from.
	REDRIVE_LONG=1 hack/brokers.sh go test -p 2 -count 1 -timeout 30m $(TEST_FLAGS) $(BROKER_TESTS)

# They make their clusters themselves. CLUSTER_TESTS says which, as go test -run takes it.
CLUSTER_TESTS ?= ThreeNodes

.PHONY: test-cluster
test-cluster: ## Run the tests on three nodes of RabbitMQ 4.0 and 4.3 that are killed, frozen and restarted; as root on Debian or Ubuntu.
	assets=$$(hack/envtest.sh); KUBEBUILDER_ASSETS=$$assets REDRIVE_TARGET=test-cluster WITHOUT_DOCKER=1 BROKERS="$${BROKERS:-4.0 4.3}" hack/brokers.sh \
		go test -p 1 -count 1 -timeout 60m -run '$(CLUSTER_TESTS)' $(TEST_FLAGS) ./internal/testbroker ./internal/apply ./internal/local ./controllers ./hack/faults

.PHONY: test-cluster-short
test-cluster-short: ## Run the part of it that takes three minutes, on RabbitMQ 4.0.
	BROKERS=4.0 $(MAKE) --no-print-directory test-cluster CLUSTER_TESTS='TestThreeNodes_(Keep|Fail)/(majority|s_node)_is_killed'

.PHONY: test-settings
test-settings: ## Run the tests on RabbitMQ 4.0 and 4.3 as people set them up, and on management APIs that lie or are late, with the waits that are the default.
	REDRIVE_TARGET=test-settings BROKERS="$${BROKERS:-4.0 4.3}" hack/brokers.sh \
		go test -count 1 -timeout 90m -parallel 8 -run 'AsTheyAreFound|ThatLiesNowAndThen|AWriteThatIsCarriedOutLate' $(TEST_FLAGS) ./internal/apply

# Beside a cluster: the current one with E2E_USE_CURRENT=1, one of kind where Docker answers, else one of plain programs, as root
# on Linux. hack/cluster/cluster.sh says more.
.PHONY: e2e
e2e: ## Run the end-to-end suite in a cluster; E2E_FLAGS are more flags of go test.
	hack/cluster/cluster.sh hack/e2e.sh $(E2E_FLAGS)

.PHONY: e2e-short
e2e-short: ## Run the part of it that takes a few minutes.
	E2E_SHORT=1 $(MAKE) --no-print-directory e2e

# The packages whose parts are measured one by one; hack/bench measures the worker as a whole.
BENCHES := ./internal/compile ./internal/scheduler ./internal/resilience ./internal/message ./internal/retry
# Flags of hack/bench, for instance BENCH_FLAGS='-run http -rounds 9'.
BENCH_FLAGS ?=

# The broker is a RabbitMQ 4 where there is a way to one; hack/brokers.sh says where from.
.PHONY: bench
bench: ## Run the benchmarks: the worker beside bare programs, on a RabbitMQ of its own; with PEERS=1 beside other workers too.
	go test -short -run '^$$' -bench . -benchmem $(BENCHES)
	@mkdir -p bin
	@go build -o bin/bench ./hack/bench
	@if [[ -n $$AMQP_URL$$REDRIVE_RABBITMQ_ROOT || $$(id -u) != 0 ]] || ! command -v apt-get >/dev/null || docker info >/dev/null 2>&1; then \
		bin/bench $(BENCH_FLAGS); \
	else \
		BROKERS=4.0 hack/brokers.sh bin/bench $(BENCH_FLAGS); \
	fi

# Flags of hack/benchoperator, for instance BENCH_OPERATOR_FLAGS='-transports 100 -polls 10'. It needs Linux; the API server and its
# company come from hack/cluster/build.sh, the broker as for bench.
BENCH_OPERATOR_FLAGS ?=

.PHONY: bench-operator
bench-operator: ## Measure the operator with a thousand Transports, on a real API server and RabbitMQ, beside a bare loop.
	@mkdir -p bin
	@go build -o bin/benchoperator ./hack/benchoperator
	@if [[ -n $$AMQP_URL$$REDRIVE_RABBITMQ_ROOT || $$(id -u) != 0 ]] || ! command -v apt-get >/dev/null || docker info >/dev/null 2>&1; then \
		bin/benchoperator $(BENCH_OPERATOR_FLAGS); \
	else \
		BROKERS=4.0 hack/brokers.sh bin/benchoperator $(BENCH_OPERATOR_FLAGS); \
	fi

.PHONY: demo
demo: ## Show Redrive at work on a RabbitMQ of its own; with CLUSTER=1 in a cluster, found or made as by e2e.
	$(if $(CLUSTER),hack/cluster/cluster.sh bash -c 'hack/cluster/install.sh && go run ./hack/demo -cluster',go run ./hack/demo)

.PHONY: dashboard-picture
dashboard-picture: ## Run everything for some minutes, and draw what the dashboard shows of it: docs/images/dashboard.svg.
	@mkdir -p bin
	assets=$$(hack/envtest.sh); KUBEBUILDER_ASSETS=$$assets go run ./hack/record -out bin/record.jsonl
	go run -C hack/monitoring .

##@ Build

.PHONY: build
build: ## Build bin/manager, bin/worker and bin/redrive.
	$(BUILD) -o bin/manager ./cmd/manager
	$(BUILD) -o bin/worker ./cmd/worker
	$(BUILD) -o bin/redrive ./cmd/redrive

.PHONY: docker-build
docker-build: ## Build the images IMG_MANAGER and IMG_WORKER.
	$(DOCKER) build --build-arg VERSION=$(VERSION) --target manager --tag $(IMG_MANAGER) .
	$(DOCKER) build --build-arg VERSION=$(VERSION) --target worker --tag $(IMG_WORKER) .

# An overlay beside the output sets the images, so that no file under config/ changes. DIST is a folder of the repository, and
# UP the way from there back to its root: kustomize takes no absolute one.
DIST ?= dist
EMPTY :=
COMMA := ,
UP = $(subst $(EMPTY) $(EMPTY),/,$(patsubst %,..,$(subst /, ,$(DIST))))
# The only namespaces that the manager is to look at, with spaces between them; none is all.
NAMESPACES ?=
define OVERLAY
resources: [$(if $(NAMESPACES),$(UP)/config/namespaced/manager $(foreach n,$(NAMESPACES),$(COMMA) namespaces/$(n)),$(UP)/config/default)]
patches:
- target: {kind: Deployment, name: redrive-manager}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/image, value: "$(IMG_MANAGER)"}
    - {op: test, path: /spec/template/spec/containers/0/env/0/name, value: REDRIVE_WORKER_IMAGE}
    - {op: replace, path: /spec/template/spec/containers/0/env/0/value, value: "$(IMG_WORKER)"}
$(if $(NAMESPACES),$(WATCHED))
endef
define WATCHED
    - {op: test, path: /spec/template/spec/containers/0/args/6, value: --watch-namespaces=shop}
    - {op: replace, path: /spec/template/spec/containers/0/args/6, value: "--watch-namespaces=$(subst $(EMPTY) $(EMPTY),$(COMMA),$(strip $(NAMESPACES)))"}
endef
export OVERLAY

.PHONY: build-installer
build-installer: ## Write dist/install.yaml: the CRDs and the manager, with IMG_MANAGER and IMG_WORKER, perhaps for NAMESPACES only.
	@mkdir -p $(DIST)
	@for n in $(NAMESPACES); do \
		mkdir -p $(DIST)/namespaces/$$n; \
		printf 'resources: [../../$(UP)/config/namespaced/namespace]\nnamespace: %s\n' $$n > $(DIST)/namespaces/$$n/kustomization.yaml; \
	done
	@echo "$$OVERLAY" > $(DIST)/kustomization.yaml
	$(TOOL) kustomize build $(DIST) > $(DIST)/install.yaml.new
	@mv $(DIST)/install.yaml.new $(DIST)/install.yaml

# What REGISTRY names goes before the images' names, in the one YAML and in the chart; they are to be pushed there.
REGISTRY ?=
RELEASE := dist/release

.PHONY: release-artifacts
release-artifacts: ## Write dist/release: programs, images, install.yaml, chart, bills of materials, sums, for VERSION and REGISTRY.
	@rm -rf $(RELEASE)
	@$(MAKE) --no-print-directory build-installer DIST=$(RELEASE)/work \
		IMG_MANAGER=$(addsuffix /,$(REGISTRY))redrive-manager:$(VERSION) IMG_WORKER=$(addsuffix /,$(REGISTRY))redrive-worker:$(VERSION)
	@mv $(RELEASE)/work/install.yaml $(RELEASE) && rm -r $(RELEASE)/work
	go run ./hack/release -version $(VERSION) -registry '$(REGISTRY)' -to $(RELEASE)

# A second build, from a copy of the files in another folder and with nothing in the compiler's cache, must give the same.
.PHONY: release-verify
release-verify: release-artifacts ## Build the release a second time, elsewhere, and compare the sums; takes many minutes.
	work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	git ls-files --cached --others --exclude-standard -z | tar --create --null --files-from=- | tar --extract --directory="$$work"; \
	GOCACHE=$$work/cache $(MAKE) --no-print-directory -C "$$work" release-artifacts VERSION=$(VERSION) REGISTRY=$(REGISTRY); \
	diff $(RELEASE)/SHA256SUMS "$$work/$(RELEASE)/SHA256SUMS"
	@echo "release-verify: both builds are the same"

##@ Cluster (the one that KUBECONFIG or kubectl's context names)

.PHONY: run
run: ## Run the manager on this machine, against the cluster.
	REDRIVE_WORKER_IMAGE=$(IMG_WORKER) go run ./cmd/manager --metrics-secure=false --metrics-bind-address=127.0.0.1:8080

# Server-side, for a client-side apply copies the whole CRD into an annotation, which has a limit.
.PHONY: install
install: ## Install the CRDs.
	$(TOOL) kustomize build config/crd | $(KUBECTL) apply --server-side -f -

# With a CRD go all its objects, and with a Transport, as it says, its queues.
.PHONY: uninstall
uninstall: ## Delete the CRDs; refused while there are objects of them.
	@found=$$($(KUBECTL) get transports.redrive.dev,retrypolicies.redrive.dev --all-namespaces --output name); \
	if [[ -n $$found ]]; then \
		echo "uninstall: delete these first, while the manager runs:" >&2; echo "$$found" >&2; exit 1; \
	fi
	$(TOOL) kustomize build config/crd | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: deploy
deploy: build-installer ## Install the CRDs and run the manager in the cluster.
	$(KUBECTL) apply --server-side -f $(DIST)/install.yaml

.PHONY: undeploy
undeploy: ## Delete the manager and what it needs, also in NAMESPACES. CRDs, Transports and their workers stay.
	$(TOOL) kustomize build config/manager | $(KUBECTL) delete --ignore-not-found -f -
	$(TOOL) kustomize build config/rbac | $(KUBECTL) delete --ignore-not-found -f -
	$(KUBECTL) delete --ignore-not-found -f config/namespaced/manager/identity.yaml
	for n in $(NAMESPACES); do $(KUBECTL) delete --ignore-not-found --namespace $$n rolebinding/redrive-manager role/redrive-manager; done
