# Two images from one build: `docker build --target manager .` and `docker build --target worker .`
# All base images can be replaced, for instance by mirrored ones.
ARG BUILDER_IMAGE=golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static:nonroot
# The worker has its time zones in itself, since it is also copied into images of others (`--install`), and needs no more than
# certificates besides. So its image is hardly larger than the program.
ARG WORKER_BASE_IMAGE=scratch

# The compiler runs on the builder's own platform and cross-compiles: emulation would be many times slower.
FROM --platform=$BUILDPLATFORM ${BUILDER_IMAGE} AS build
WORKDIR /src
# Modules first: their layer lasts until go.mod changes.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=
ENV CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} GOFLAGS="-trimpath -buildvcs=false"

# A stage for each program, so that one image does not wait for the other's.
FROM build AS build-manager
RUN go build -ldflags "-s -w -X redrive.dev/redrive/internal/version.version=${VERSION}" -o /manager ./cmd/manager

FROM build AS build-worker
RUN go build -ldflags "-s -w -X redrive.dev/redrive/internal/version.version=${VERSION}" -o /worker ./cmd/worker

FROM ${BASE_IMAGE} AS manager
COPY --from=build-manager /manager /manager
# By number: Kubernetes cannot tell whether a name is root, and runAsNonRoot refuses it.
USER 65532:65532
ENTRYPOINT ["/manager"]

FROM ${WORKER_BASE_IMAGE} AS worker
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build-worker /worker /worker
USER 65532:65532
ENTRYPOINT ["/worker"]
