# The images of the operator and the agent, for machines that can reach a registry:
#
#   docker build --target operator -t weir.dev/operator:0.1.0 .
#   docker build --target agent    -t weir.dev/agent:0.1.0 .
#   docker build --target testapp  -t weir.dev/testapp:0.1.0 .      (the app of examples/workload)
#
# For two architectures: docker buildx build --platform linux/amd64,linux/arm64 and so on. This file works for both.
#
# The end-to-end tests do not use this file, because their machines may have no registry. e2e/images/build.sh makes
# images from local binaries with the same e2e/images/layout.sh, and the tests use these images, which are smaller than
# 30 MB. Their agent has the profile release. This file uses the profile dist, which takes longer to build (Cargo.toml
# says why).
# No test builds this file. Its stages were built by hand with Docker's classic builder, on Debian 12 with Rust 1.95.0
# instead of the image rust (no registry was reachable). The images had 26.6, 16.8 and 5.7 MB, and each program ran.
# Since then the agent's profile has changed to dist. Its build commands were run outside of Docker.

# The image has the Rust version of rust-toolchain.toml. .dockerignore excludes that file from the build, because it
# requires rustfmt and clippy, which rustup would download.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p weir-operator -p weir-testapp
RUN cargo build --profile dist --locked -p weir-agent
RUN for part in release/weir-operator dist/weir-agent release/weir-testapp; do \
    e2e/images/layout.sh target/$part /image/${part##*-} || exit 1; done

# From scratch: the binary, the libraries that it needs, and no shell. 65532 is the user nonroot.
FROM scratch AS operator
COPY --from=build /image/operator /
USER 65532:65532
EXPOSE 8490 8491
ENTRYPOINT ["/usr/local/bin/weir-operator"]
CMD ["run"]

FROM scratch AS agent
COPY --from=build /image/agent /
USER 65532:65532
EXPOSE 8480 8481 8482
ENTRYPOINT ["/usr/local/bin/weir-agent"]

FROM scratch AS testapp
COPY --from=build /image/testapp /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/weir-testapp"]
