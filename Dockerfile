# The images of the operator and the agent:
#
#   docker build --target operator -t weir.dev/operator:0.1.0 .
#   docker build --target agent    -t weir.dev/agent:0.1.0 .
#   docker build --target testapp  -t weir.dev/testapp:0.1.0 .      (the app of examples/workload)
#
# To build images for two architectures, use docker buildx build --platform linux/amd64,linux/arm64.
#
# The end-to-end tests also build images from this file (e2e/images/build.sh). If their machine cannot reach a registry,
# they import the image BUILDER, and put compiled programs into the folder bin of the build context. So these tests do
# not cover the image rust and the commands that compile. The agent in these tests has the profile release. This file
# uses the profile dist, which takes longer to build (see Cargo.toml).

# The image has the Rust version of rust-toolchain.toml. .dockerignore excludes that file from the build, because it
# requires rustfmt and clippy, which rustup would download.
ARG BUILDER=rust:1.95-slim-bookworm
FROM $BUILDER AS build
WORKDIR /src
COPY . .
RUN [ -d bin ] || { \
    cargo build --release --locked -p weir-operator -p weir-testapp && \
    cargo build --profile dist --locked -p weir-agent && \
    install -D -t bin target/release/weir-operator target/dist/weir-agent target/release/weir-testapp; }
RUN for part in operator agent testapp; do e2e/images/layout.sh bin/weir-$part /image/$part || exit 1; done

# Each image contains only the binary and the libraries that it needs, without a shell. 65532 is the user nonroot.
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
