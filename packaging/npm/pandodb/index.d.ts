export interface Options {
  /** The data directory; without it a temporary one, removed by stop(). */
  path?: string;
  /** The TCP port; without it a free one. */
  port?: number;
  /** More words for `pando serve`. */
  args?: string[];
  /** How long to wait until the server listens. */
  timeoutMs?: number;
}
export interface Server {
  readonly uri: string;
  readonly port: number;
  readonly pid: number;
  stop(): Promise<void>;
}
/** The path of the server's program: PANDO_BIN, or the one of this platform's package. */
export function program(): string;
export function start(options?: Options): Promise<Server>;
