# Images of the operator and the agent, for builders with a registry at hand:
#
#   docker build --target operator -t weir.dev/operator:0.1.0 .
#   docker build --target agent    -t weir.dev/agent:0.1.0 .
#   docker build --target testapp  -t weir.dev/testapp:0.1.0 .      (the app of examples/workload)
#
# For two architectures: docker buildx build --platform linux/amd64,linux/arm64 and so on; nothing in here is of one of them.
#
# The end-to-end tests do not use this file, because the machines they run on may have no registry: e2e/images/build.sh
# makes images from local binaries by the same e2e/images/layout.sh, and those are the ones that are tested, under 30 MB each; their
# agent is built in release, this one in dist, which takes longer (Cargo.toml says what for).
# No test builds this file. Its stages were built by hand with Docker's classic builder, on a Debian 12 with Rust 1.95.0 in place
# of the image rust (no registry could be reached) and most dependencies compiled already: 26.6, 16.8 and 5.7 MB, and each program ran.
# That was before its agent was built in dist: since then its commands were run, and Docker has not run them.

# The image's own Rust, the version of rust-toolchain.toml. That file is left out of the build (.dockerignore): it asks for rustfmt and
# clippy too, which rustup would have to fetch.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p weir-operator -p weir-testapp
RUN cargo build --profile dist --locked -p weir-agent
RUN for part in release/weir-operator dist/weir-agent release/weir-testapp; do \
    e2e/images/layout.sh target/$part /image/${part##*-} || exit 1; done

# From scratch: the binary, the libraries that it needs, and nothing else; no shell. 65532 is nobody.
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
